"""The process that Spark forks Python workers from, with the imports of a copy done once, before the first fork.

Spark starts it as ``python -m pgsluice.replicator.snapshot.spark_daemon`` in the place of ``pyspark.daemon``.
"""

import gc
import signal

import pyspark.worker  # noqa: F401
from pyspark import daemon

import pgsluice.replicator.snapshot.copy_task  # noqa: F401
from pgsluice.shared import telemetry
from pgsluice.shared.process.memory import reuse_freed_memory

if __name__ == "__main__":
    telemetry.set_up_task()
    reuse_freed_memory()
    gc.freeze()  # Python workers collect garbage after each task; imported modules are never garbage, and take 20 ms to check
    # A supervisor that sends a signal to every process of pgsluice means the driver, which then ends the JVM, whose end
    # ends this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    daemon.manager()
