"""Spark as replicator and worker start it. Nobody imports it who does not need a JVM."""
