"""Small sinks that fail as they are told, and a worker of one test that applies to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import CopyState, Ledger
from pgsluice.shared.broker.worker_records import BatchesRecord, BatchRecord, batches_key
from pgsluice.shared.errors import UsageError
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import encode_table
from pgsluice.worker.batches.batch_loop import BatchLoop, start_batches
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.positions.report import ProgressReport
from pgsluice.worker.positions.target import find_drain_target
from pgsluice.worker.sinks.sink import Applied, Delivery, Partition, Receipt
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.published_copy import ORDERS, copy_publisher, snapshot_record
from tests.worker.published_stream import TABLE, publish_inserts, settings_for
from tests.worker.running_worker import running_worker
from tests.worker.sinks.sqlite_sink import LineWriter, SqliteSink

LONGEST_S = 120.0


@dataclass(frozen=True)
class FailingWriter(LineWriter):
    """Does what ``failure`` says, in a Spark task: each time, or only while there is no file ``once``."""

    failure: str
    once: Path | None = None

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        for body in super().write(partition, messages):
            if self.once is None or not self.once.exists():
                if self.once is not None:
                    self.once.touch()
                self._fail()
            yield body

    def _fail(self) -> None:
        match self.failure:
            case "usage":
                raise UsageError("an option is wrong", "mend it")
            case "defect":
                raise ValueError("which quotes a row")
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)


class SilentWriter(LineWriter):
    """Forgets its receipt."""

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        list(messages)
        return iter(())


class FailingSink(SqliteSink):
    """``failures`` are raised by ``commit``, one at each call, before it applies anything; at None it goes on."""

    def __init__(self, settings: object, path: Path, *failures: Exception | None, task: LineWriter | None = None) -> None:
        super().__init__(settings, {"path": str(path)})  # type: ignore[arg-type]
        self.failures = list(failures)
        self.task = task or LineWriter()
        self.commits = 0
        self.rejecting_passes = 0

    def rejected(self) -> None:
        self.rejecting_passes += 1

    def writer(self) -> LineWriter:
        return self.task

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        self.commits += 1
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            list(receipts)
            raise failure
        return super().commit(receipts, stream_created)


@dataclass(frozen=True)
class MarkingWriter(LineWriter):
    """Adds a byte to a file in ``marks`` for each attempt at writing a partition, named by its stream and first sequence."""

    marks: Path

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        yield from super().write(partition, messages)
        self._mark(f"m{partition.first_sequence}")

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        yield from super().write_copied(partition, copied)
        self._mark(f"c{partition.first_sequence}")

    def _mark(self, name: str) -> None:
        with (self.marks / name).open("a") as file:
            file.write(".")


class WatchingSink(FailingSink):
    """``commit`` waits for what is being written ahead, and notes what was written by then."""

    batches: BatchLoop

    def __init__(self, settings: object, path: Path, marks: Path, *failures: Exception | None, delivery: Delivery) -> None:
        super().__init__(settings, path, *failures, task=MarkingWriter(marks))
        self.delivery = delivery
        self.marks = marks
        self.delivery_after_failure = delivery
        self.seen: list[list[str]] = []

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        if self.batches._ahead is not None:
            self.batches._ahead.exception(LONGEST_S)
        self.seen.append(self.written())
        if self.failures and self.failures[0] is not None:
            self.delivery = self.delivery_after_failure
        return super().commit(receipts, stream_created)

    def written(self) -> list[str]:
        return sorted(path.name for path in self.marks.iterdir())

    def attempts(self, *names: str) -> list[int]:
        return [(self.marks / name).stat().st_size for name in names]


class Harness:
    """A worker of one test, without the steps of its start."""

    def __init__(self, spark: Spark, nats: NatsServer, group: str, path: Path, messages: int = 3) -> None:
        self.spark, self.path, self.names = spark, path, GroupNames(group)
        self.loop = EventLoopThread("test-worker")
        self.settings = settings_for(nats.settings(), group)
        self.client = self.loop.run(connect(self.settings.nats, "test"))
        self.registry: DeadLetterRegistry
        self.report: ProgressReport
        self.loop.run(publish_inserts(self.client, group, messages))

    def sink(self, *failures: Exception, task: LineWriter | None = None) -> FailingSink:
        return FailingSink(self.settings, self.path, *failures, task=task)

    def watching_sink(self, *failures: Exception | None, delivery: Delivery = Delivery.AHEAD) -> WatchingSink:
        """For a worker whose batches are a message each."""
        self.settings = replace(self.settings, batch_messages=1)
        marks = self.path.parent / "marks"
        marks.mkdir()
        return WatchingSink(self.settings, self.path, marks, *failures, delivery=delivery)

    def copy(self) -> None:
        """A finished copy of a table that is not in the ledger, so that its rows do not count: it was begun twice."""

        async def publish() -> None:
            messages = await copy_publisher(self.client, self.names.group)
            for attempt in (1, 2):
                await messages.begin(ORDERS, attempt, encode_table(TABLE))
            for number in (1, 2):
                await messages.rows(ORDERS, encode_table(TABLE), range_number=number)
            await Ledger(StateBucket(self.client, self.names)).store_snapshot(snapshot_record(CopyState.FINISHED, 4))

        self.loop.run(publish())

    def apply(self, sink: FailingSink) -> Applied:
        """Applies what the stream holds; returns what is applied by then."""
        batches = self.start(sink)
        try:
            wait_until(lambda: batches.ended(0.1), deadline_s=LONGEST_S, what="the end of the batches")
            return batches.applied
        finally:
            batches.stop()
            sink.close()

    def told(self) -> tuple[BatchRecord, ...]:
        """The batches that the worker tells of."""

        async def tell() -> tuple[BatchRecord, ...]:
            await self.report.start(lambda _: None)
            await self.report.stop()
            entry = await StateBucket(self.client, self.names).read(batches_key(self.settings.name), BatchesRecord)
            return () if entry is None else entry.value.batches

        return self.loop.run(tell())

    def start(self, sink: FailingSink) -> BatchLoop:
        worker = running_worker(self.settings, self.loop, self.client, self.spark, sink)
        self.registry, self.report = worker.registry, worker.report
        target = self.loop.run(find_drain_target(self.client, self.names, "current"))
        worker = replace(worker, target=target)
        if not isinstance(sink, WatchingSink):
            return start_batches(worker)
        sink.batches = BatchLoop(worker, worker.planner())
        sink.batches.start()
        return sink.batches

    def close(self) -> None:
        self.loop.run(disconnect(self.client))
        self.loop.close()
