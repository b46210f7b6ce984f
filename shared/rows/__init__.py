"""Rows as columns, as rules and sinks take them. For rules, worker and console: NumPy and Arrow are needed here, which the
replicator does not load."""
