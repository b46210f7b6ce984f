"""What more than one package needs: the wire, the broker, configuration, rows, processes, Spark, errors and the log.

Each folder says in its first docstring who may import it. Nothing here knows the replicator, rules, the worker or the console.
"""
