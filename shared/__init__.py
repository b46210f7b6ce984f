"""Code that more than one package uses: the wire, the broker, configuration, rows, processes, Spark, errors and the log.

A folder that only some packages may import names them in its first docstring. Nothing here knows the replicator, rules,
the worker or the console.
"""
