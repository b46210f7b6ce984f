"""A worker that is asked to stop ends well in whatever state it is: with real Spark, a real broker and a small sink."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.rules.transformation import UNTRANSFORMED
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.worker_records import lease_key
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.positions.lease import Lease
from pgsluice.worker.sinks.sink import Applied, Receipt, Sink
from pgsluice.worker.worker import Worker
from tests.servers import NatsServer
from tests.servers.program import REPOSITORY
from tests.waiting import wait_until
from tests.worker.published_stream import ids_in, publish_inserts, settings_for
from tests.worker.sinks.sqlite_sink import SqliteSink

LONGEST_S = 120.0


class Sqlite(SqliteSink):
    """Knows in which file its lines are."""

    def __init__(self, settings: WorkerSettings, path: Path) -> None:
        super().__init__(settings, {"path": str(path)})


class AwaySink(Sqlite):
    """Whose destination is away."""

    def open(self) -> Applied:
        raise TransientError("the target is away", "wait")


class SlowSink(Sqlite):
    """Whose commits take as long as the test wants."""

    def __init__(self, settings: WorkerSettings, path: Path) -> None:
        super().__init__(settings, path)
        self.is_committing, self.may_commit = threading.Event(), threading.Event()

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        self.is_committing.set()
        assert self.may_commit.wait(LONGEST_S)
        return super().commit(receipts, stream_created)


class Stage:
    """A group in a broker, and one worker of it that runs in a thread."""

    def __init__(self, nats: NatsServer, group: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.path, self.group = path, group
        self.settings = replace(settings_for(nats.settings(), group), spark={"master": "local[1]", "memory": "512m"})
        self.loop = EventLoopThread("test-stage")
        self.client = self.loop.run(connect(nats.settings(), "test"))
        self.bucket = StateBucket(self.client, GroupNames(group))
        self.worker: Worker
        self._caplog = caplog
        self._pool = ThreadPoolExecutor(1)

    def publish(self, count: int) -> None:
        self.loop.run(publish_inserts(self.client, self.group, count))

    def start(self, new_sink: Callable[[WorkerSettings], Sink]) -> None:
        self.worker = Worker(self.settings, new_sink, UNTRANSFORMED)
        self._run = self._pool.submit(self.worker.run)

    def wait_for_log(self, message: str) -> None:
        def is_said() -> bool:
            return self._run.done() or any(record.getMessage() == message for record in self._caplog.records)

        wait_until(is_said, deadline_s=LONGEST_S, what=message)
        assert message in [record.getMessage() for record in self._caplog.records], "the worker ended before"

    def stop(self) -> None:
        """Returns when ``run`` has, and everything is closed. Raises what it raised."""
        self.worker.request_stop()
        self.finish()

    def finish(self) -> None:
        """As ``stop``, of a worker that ends by itself."""
        try:
            self._run.result(LONGEST_S)
        finally:
            self.worker.close()

    @property
    def is_leased(self) -> bool:
        return self.loop.run(self.bucket.get(lease_key("w"))) is not None

    def close(self) -> None:
        """A worker that a failed test left behind is stopped."""
        self.worker.request_stop()
        self._pool.shutdown()
        self.loop.run(disconnect(self.client))
        self.loop.close()


@pytest.fixture
def stage(
    nats_server: NatsServer, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, spark_environment: None
) -> Iterator[Stage]:
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    caplog.set_level(logging.INFO)
    made = Stage(nats_server, group, tmp_path / "changes.db", caplog)
    yield made
    made.close()


def test_a_worker_stops_while_it_waits_for_its_streams(stage: Stage) -> None:
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("waiting")
    stage.stop()
    assert not stage.path.exists()


def test_a_worker_stops_while_it_waits_for_the_lease_and_leaves_it_to_its_holder(stage: Stage) -> None:
    stage.publish(1)
    holder = Lease(stage.bucket, "w")
    stage.loop.run(holder.acquire(lambda error: None))
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("waiting for the lease of a worker of the same name")
    stage.stop()
    assert stage.is_leased
    assert not stage.path.exists()
    stage.loop.run(holder.release())


def test_a_worker_stops_while_its_sink_is_away_and_gives_the_lease_back(stage: Stage) -> None:
    stage.publish(1)
    stage.start(lambda settings: AwaySink(settings, stage.path))
    stage.wait_for_log("the sink cannot be opened, trying again")
    assert stage.is_leased
    stage.stop()
    assert not stage.is_leased


def test_a_worker_that_is_stopped_in_a_batch_finishes_it(stage: Stage) -> None:
    stage.publish(3)
    sinks: list[SlowSink] = []

    def new_sink(settings: WorkerSettings) -> SlowSink:
        sinks.append(SlowSink(settings, stage.path))
        return sinks[-1]

    stage.start(new_sink)
    wait_until(sinks[0].is_committing.is_set, deadline_s=LONGEST_S, what="a commit")
    stage.worker.request_stop()
    sinks[0].may_commit.set()
    stage.stop()
    assert ids_in(stage.path) == [1, 2, 3]
    assert not stage.is_leased


def test_a_worker_stops_between_batches(stage: Stage) -> None:
    stage.publish(3)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("reading")
    wait_until(lambda: ids_in(stage.path) == [1, 2, 3], deadline_s=LONGEST_S, what="the batch")
    stage.stop()
    assert not stage.is_leased


def test_a_worker_stops_while_a_batch_waits_for_executors(stage: Stage) -> None:
    """Of a cluster that has no cores for us."""
    stage.publish(3)
    cluster = {"spark.master": "local-cluster[0,1,512]", "spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    secret = {"spark.authenticate": "true", "spark.authenticate.secret": "shared", "spark.network.crypto.enabled": "true"}
    stage.settings = replace(stage.settings, spark=cluster | secret)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("waiting for Spark executors")
    stage.stop()
    assert ids_in(stage.path) == []
    assert not stage.is_leased


def test_a_worker_with_a_target_ends_by_itself(stage: Stage) -> None:
    stage.publish(3)
    stage.settings = replace(stage.settings, until_sequence="current")
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.finish()
    assert ids_in(stage.path) == [1, 2, 3]
    assert not stage.is_leased
