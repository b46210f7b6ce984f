"""Metrics of a replicator: its counters, and values that are read at the source and in the group."""
