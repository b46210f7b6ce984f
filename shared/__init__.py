"""What more than one package needs: the wire, the broker, configuration, rows, processes, Spark, errors and the log.

A folder that not everybody may import says so in its first docstring. Nothing here knows the replicator, rules, the worker or
the console.
"""
