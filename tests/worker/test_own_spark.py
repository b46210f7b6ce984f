"""A worker starts Spark, tells it what it needs, and ends it: these workers borrow none, as those of other tests do."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import psutil

from pgsluice.worker.batches.task import PRELOAD
from tests.waiting import wait_until
from tests.worker.published_stream import ids_in
from tests.worker.sinks.file.output import new_sink
from tests.worker.stage import LONGEST_S, Sqlite, Stage

WORKER_DAEMON = "pgsluice.worker.spark_daemon"


def told_daemons(stage: Stage) -> set[str]:
    """What PRELOAD says in those of the worker's JVM."""
    told = set()
    for each in psutil.Process(stage.worker._spark.process_id).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # zombies among them
            if WORKER_DAEMON in each.cmdline():
                told.add(each.environ().get(PRELOAD, ""))
    return told


def has_spark(stage: Stage) -> bool:
    pid = stage.worker._spark.process_id
    return pid is not None and psutil.pid_exists(pid)


def test_a_worker_that_is_stopped_while_spark_starts_ends_it(stage_with_its_own_spark: Stage) -> None:
    stage = stage_with_its_own_spark
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("waiting")
    stage.stop()
    assert not stage.path.exists()
    assert not has_spark(stage)


def test_a_worker_tells_spark_what_its_sink_needs_and_ends_it(stage_with_its_own_spark: Stage, tmp_path: Path) -> None:
    stage = stage_with_its_own_spark
    stage.publish(3)
    stage.start(lambda settings: new_sink(tmp_path / "out"))
    told = wait_until(lambda: has_spark(stage) and told_daemons(stage), deadline_s=LONGEST_S, what="a Python process of Spark")
    stage.stop()
    assert told == {"pgsluice.worker.sinks.file.sink"}
    assert not has_spark(stage)


def test_a_worker_stops_while_a_batch_waits_for_executors(stage_with_its_own_spark: Stage) -> None:
    """Of a cluster that has no cores for us."""
    stage = stage_with_its_own_spark
    stage.publish(3)
    cluster = {"spark.master": "local-cluster[0,1,512]", "spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    secret = {"spark.authenticate": "true", "spark.authenticate.secret": "shared", "spark.network.crypto.enabled": "true"}
    stage.settings = replace(stage.settings, spark=cluster | secret)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("waiting for Spark executors")
    stage.stop()
    assert ids_in(stage.path) == []
    assert not stage.is_leased
