"""A group in a broker, and one worker of it that runs in a thread of the test, with real Spark and a small sink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.rules.transformation import UNTRANSFORMED
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.unit_records import Desired, DesiredRecord, ProcessRecord, desired_key, process_key, worker_unit
from pgsluice.shared.broker.worker_records import lease_key
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.sink import Applied, Receipt, Sink
from pgsluice.worker.worker import Worker
from tests.borrowed_spark import SETTINGS
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.published_stream import publish_inserts, settings_for
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
        self.settings = replace(settings_for(nats.settings(), group), spark=SETTINGS)
        self.loop = EventLoopThread("test-stage")
        self.client = self.loop.run(connect(nats.settings(), "test"))
        self.bucket = StateBucket(self.client, GroupNames(group))
        self.worker: Worker
        self._caplog = caplog
        self._pool = ThreadPoolExecutor(1)
        self._is_closed = True

    def publish(self, count: int) -> None:
        self.loop.run(publish_inserts(self.client, self.group, count))

    def publish_more(self, first: int, last: int) -> None:
        self.loop.run(publish_inserts(self.client, self.group, last, first))

    def wait_for_reports(self) -> None:
        """So long that a worker which goes on would have looked at the stream."""
        before = self.process()
        self.wait_for_process(lambda told: before is None or told.updated_at > before.updated_at, "another record")

    def start(self, new_sink: Callable[[WorkerSettings], Sink]) -> None:
        self.worker = Worker(self.settings, new_sink, UNTRANSFORMED)
        self._is_closed = False
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
            self._close_worker()

    def desire(self, state: Desired) -> int:
        """As a person who writes it; returns the revision."""
        return self.loop.run(self.bucket.put(desired_key(worker_unit("w")), DesiredRecord(state, "a test", "pytest")))

    def process(self) -> ProcessRecord | None:
        """What the worker's process has told."""
        entry = self.loop.run(self.bucket.read(process_key(worker_unit("w")), ProcessRecord))
        return None if entry is None else entry.value

    def wait_for_process(self, holds: Callable[[ProcessRecord], bool], what: str) -> ProcessRecord:
        def found() -> ProcessRecord | None:
            record = self.process()
            return record if record is not None and holds(record) else None

        record = wait_until(found, deadline_s=LONGEST_S, what=what)
        assert record is not None
        return record

    @property
    def is_leased(self) -> bool:
        return self.loop.run(self.bucket.get(lease_key("w"))) is not None

    def _close_worker(self) -> None:
        self._is_closed = True
        self.worker.close()

    def close(self) -> None:
        """A worker that a failed test left behind is stopped, and its Spark with it."""
        self.worker.request_stop()
        self._pool.shutdown()
        if not self._is_closed:
            self._close_worker()
        self.loop.run(disconnect(self.client))
        self.loop.close()
