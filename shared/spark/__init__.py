"""Spark as replicator and worker start it. Only ``session`` loads it; who needs no JVM does not import that module."""
