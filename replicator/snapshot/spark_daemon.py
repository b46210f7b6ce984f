"""The process that Spark forks Python workers from, with the imports of a copy done once, before the first fork.

Spark starts it as ``python -m replicator.snapshot.spark_daemon`` in the place of ``pyspark.daemon``.
"""

import pyspark.worker  # noqa: F401
from pyspark import daemon

import replicator.snapshot.copy_task  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
