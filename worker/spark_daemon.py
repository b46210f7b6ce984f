"""The process that Spark forks Python workers from, with a worker's imports done once, before the first fork.

Spark starts it as ``python -m pgsluice.worker.spark_daemon`` in the place of ``pyspark.daemon``. Without it each fresh Python
worker imports the sink's libraries for itself: more than a second of its first batch, and memory that none shares with others.
"""

import gc
import importlib
import os
import signal

import pyspark.worker  # noqa: F401
from pyspark import daemon

from pgsluice.shared import telemetry
from pgsluice.shared.process.memory import reuse_freed_memory
from pgsluice.worker.batches.task import PRELOAD

if __name__ == "__main__":
    telemetry.set_up_task()
    reuse_freed_memory()
    for module in os.environ.get(PRELOAD, "").split():
        importlib.import_module(module)
    gc.freeze()  # Python workers collect garbage after each task; imported modules are never garbage, and take 20 ms to check
    # A supervisor that sends a signal to every process of pgsluice means the driver, which then ends the JVM, whose end
    # ends this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    daemon.manager()
