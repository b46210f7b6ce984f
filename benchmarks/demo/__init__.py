"""``make demo``: a small shop is replicated live, on servers that the demo starts and removes again."""
