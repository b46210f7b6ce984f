"""Ranges as Spark jobs: one job with one task for what is taken from the schedule at once, as many jobs as tasks may run.

With a separate job for each task the schedule decides what runs next, so that a table's share and a failed range's
repetition do not depend on how Spark deals out the partitions of one large job.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgsluice.replicator.snapshot.copy_task import copy_ranges
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeOutcome, RangeRequest, RangeStatus
from pgsluice.replicator.snapshot.schedule import Job
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.spark.executors import check_executors
from pgsluice.shared.spark.failure import failure_reason
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.spark.spark_settings import DEFAULT_MASTER, is_local, local_tasks, with_most_cores

DAEMON_MODULE = "pgsluice.replicator.snapshot.spark_daemon"


def bounded_settings(settings: Mapping[str, str], connections: int) -> dict[str, str]:
    """Returns Spark's settings with at most ``connections`` tasks at a time; a cluster's bound on cores that is given
    stays."""
    tasks = local_tasks(settings.get("spark.master", DEFAULT_MASTER))
    if tasks is None:
        return with_most_cores(settings, connections)
    return dict(settings) | {"spark.master": f"local[{min(tasks, connections)}]"}


def start_spark(spark: Spark, connections: int, files: Sequence[str]) -> None:
    """Starts Spark and the Python processes of its tasks, which takes as long again; so a snapshot need not be kept
    meanwhile. ``files`` are the files that tasks will read. Raises TransientError when Spark does not start, or cannot
    run the tasks."""
    spark.start()
    check_executors(spark, files)
    tasks = most_tasks(spark, connections)
    try:
        spark.context.parallelize(range(tasks), tasks).foreachPartition(_nothing)
    except (Py4JError, PySparkException, OSError) as failure:
        raise TransientError(
            f"Spark runs no task ({failure_reason(failure)})", "see Spark's log, then start again", Cause.SPARK
        ) from None


def most_tasks(spark: Spark, connections: int) -> int:
    """Returns how many jobs keep Spark busy without more than ``connections`` tasks at a time."""
    return min(connections, spark.parallelism) if is_local(str(spark.context.master)) else connections


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """``CopyTasks`` (``copy_round``) of a Spark that has started; ``threads`` wait for its jobs."""

    spark: Spark
    threads: Executor
    connections: int

    @property
    def most(self) -> int:
        return most_tasks(self.spark, self.connections)

    def job(self, parameters: CopyParameters) -> Job:
        return functools.partial(run_job, self.spark, parameters)

    def cancel(self) -> None:
        self.spark.cancel_jobs()


def run_job(spark: Spark, parameters: CopyParameters, ranges: Sequence[RangeRequest]) -> list[RangeOutcome]:
    """Copies the ranges; returns the outcome of each. Blocks; several threads may call it at a time. What PySpark
    raises when the JVM has died is not caught."""
    try:
        one_task = spark.context.parallelize(range(1), 1)
        outcomes: list[RangeOutcome] = one_task.mapPartitions(functools.partial(_copy, parameters, ranges)).collect()
    except (Py4JError, PySparkException, OSError) as failure:
        if spark.has_died:  # no table's fault
            raise
        error = TransientError(
            f"a Spark task that copied ended without an outcome ({failure_reason(failure)})", "see Spark's log", Cause.SPARK
        )
        return [RangeOutcome(request.pages, RangeStatus.FAILED, error=error) for request in ranges]
    return outcomes


def _nothing(_: Iterator[int]) -> None:
    pass


def _copy(parameters: CopyParameters, ranges: Sequence[RangeRequest], _: Iterator[int]) -> Iterator[RangeOutcome]:
    return copy_ranges(parameters, ranges)
