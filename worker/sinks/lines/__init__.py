"""Changes as lines: JSON of pgsluice's own shape or pg_flo's, for the sinks that write lines."""
