"""The executors of a cluster: whether there are any, and whether they are fit to run pgsluice's tasks.

A small job at the start checks them, so that a single message names what they lack before anything is written. An
executor that comes later is not checked; what it lacks fails its first task, with the sentence of ``failure``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.spark.executor_facts import TASK_LIBRARIES, ExecutorFacts, LookAtExecutor
from pgsluice.shared.spark.failure import failure_reason
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.spark.spark_settings import is_local

WAIT_LOG_INTERVAL_S = 10.0

_REMEDY = "nothing is lost; see 'Run tasks on a Spark cluster' in the documentation, then start again"

log = telemetry.logger(__name__)


def check_executors(spark: Spark, files: Iterable[str]) -> None:
    """Waits for executors of a cluster, and checks those that exist then; ``files`` are the files that tasks will read.
    Does nothing with a local master.

    Raises TransientError when one of them cannot run the tasks, or the job was cancelled: another one may be fit.
    """
    if is_local(str(spark.context.master)):
        return
    look = LookAtExecutor(tuple(files))
    try:
        spark.run_tasks(look, [0])  # by then it is known how many tasks run at once
        found = spark.run_tasks(look, range(spark.parallelism))
    except (Py4JError, PySparkException, OSError) as error:
        raise TransientError(
            f"Spark's executors run no task of pgsluice ({failure_reason(error)})", _REMEDY, Cause.SPARK
        ) from None
    driver = ExecutorFacts.of_this_process(())
    for executor in found:
        check_fit(executor, spark.code)
    for host, differing in sorted({facts.host: _differing(facts, driver) for facts in found}.items()):
        if differing:
            log.warning("an executor has other versions of libraries than the driver", host=host, differing=differing)
    log.info("executors are fit", tasks=len(found), hosts=" ".join(sorted({facts.host for facts in found})))


def check_fit(executor: ExecutorFacts, code: str) -> None:
    """Raises TransientError with the first thing that keeps ``executor`` from running the tasks; ``code`` is the name
    of the shipped archive."""
    where = f"the executor on {executor.host}"
    if code not in executor.code:
        raise TransientError(
            f"{where} takes pgsluice from {executor.code}, and not from the driver's archive",
            "something there puts that before PYTHONPATH: remove it",
            Cause.SPARK,
        )
    if missing := [name for name in TASK_LIBRARIES if name not in executor.libraries]:
        raise TransientError(f"{where} lacks Python libraries: {', '.join(missing)}", _REMEDY, Cause.SPARK)
    if executor.unreadable:
        raise TransientError(
            f"{where} cannot read {', '.join(executor.unreadable)}",
            "tasks need files that the settings name at the same path on every executor",
            Cause.SPARK,
        )


class ExecutorWatch:
    """Warns periodically that there are no executors."""

    def __init__(self) -> None:
        self._had_executors_at = time.monotonic()

    def look(self, spark: Spark) -> None:
        """Checks for executors; call it about once a second, after Spark was requested."""
        if not spark.has_started or spark.executors:
            self._had_executors_at = time.monotonic()
        elif time.monotonic() - self._had_executors_at >= WAIT_LOG_INTERVAL_S:
            self._had_executors_at = time.monotonic()
            log.warning(
                "waiting for Spark executors",
                master=spark.context.master,
                remedy="the cluster has no machine or no free cores for pgsluice: see its master, and spark.cores.max of others",
            )


def _differing(executor: ExecutorFacts, driver: ExecutorFacts) -> str:
    """Like ``orjson 3.10.1 (3.11.0)``, the driver's version in parentheses."""
    versions = driver.libraries
    return ", ".join(
        f"{name} {has} ({versions.get(name)})" for name, has in executor.libraries.items() if has != versions.get(name)
    )
