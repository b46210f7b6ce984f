"""Changes as lines of JSON, in our shape and in pg_flo's. For sinks that write lines, and for the command line."""
