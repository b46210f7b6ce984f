"""What the replicator and the worker must agree on, and nothing else: names, positions, the wire, configuration, errors."""
