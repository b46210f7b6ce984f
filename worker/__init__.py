"""JetStream to sinks: the process that reads the change stream with Spark and applies it."""
