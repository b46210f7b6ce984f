"""Changes as lines: JSON of our own shape or pg_flo's, for the sinks that write lines."""
