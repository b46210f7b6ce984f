"""The duties of a worker while no batch is in hand: with a real broker, a small sink, and a query that is told what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pgsluice.rules.transformation import UNTRANSFORMED
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord
from pgsluice.shared.definitions.definition_decisions import HeldColumn, accept, store_held
from pgsluice.shared.errors import PgsluiceError, StreamBehindError, TransientError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.spark.session import Spark
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker import between_batches, group_streams
from pgsluice.worker.between_batches import BetweenBatches
from pgsluice.worker.definitions import worker_definitions
from pgsluice.worker.definitions.worker_definitions import WorkerDefinitions
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.positions.target import DrainTarget
from pgsluice.worker.sinks.sink import Applied, CatchUp
from pgsluice.worker.stopping import POLL_INTERVAL_S, StopRequested, WorkerStopping
from tests.borrowed_spark import borrowed_spark
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.published_stream import publish_inserts, settings_for
from tests.worker.running_worker import running_worker
from tests.worker.sinks.sqlite_sink import SqliteSink

COPIED = Applied(0, 0, 0, "", snapshot_sequence=7)
"""Where the copy of these tests ends."""


class TickingSink(SqliteSink):
    """Counts what it is asked for. ``finish_copy`` raises the ``failures``, one at each call."""

    def __init__(self, settings: object, path: Path) -> None:
        super().__init__(settings, {"path": str(path)})  # type: ignore[arg-type]
        self.finished = self.ticks = 0
        self.failures: list[PgsluiceError] = []

    def finish_copy(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.finished += 1

    def tick(self) -> None:
        self.ticks += 1


@dataclass
class Query:
    """Ends after as many turns as there are in ``turns``; each says whether batches leave room for something between them."""

    turns: list[bool]
    applied: Applied = COPIED
    has_room: bool = True
    looks: int = 0
    pauses_s: list[float] = field(default_factory=list)

    def look_again(self) -> None:
        self.looks += 1

    def ended(self, timeout_s: float) -> bool:
        self.pauses_s.append(timeout_s)
        if not self.turns:
            self.has_room = True
            return True
        self.has_room = self.turns.pop(0)
        return False

    def between_batches(self, work: Callable[[], None], timeout_s: float) -> bool:
        if self.has_room:
            work()
        return self.has_room

    def stop(self) -> None: ...


class Harness:
    """A worker of one test, without the steps of its start; its query is a ``Query``."""

    def __init__(self, spark: Spark, nats: NatsServer, group: str, path: Path) -> None:
        names = GroupNames(group)
        self.loop = EventLoopThread("test-duties")
        settings = settings_for(nats.settings(), group)
        self.client = self.loop.run(connect(settings.nats, "test"))
        self.loop.run(publish_inserts(self.client, group, 1))
        self.bucket = StateBucket(self.client, names)
        self.sink = TickingSink(settings, path)
        self.worker = running_worker(settings, self.loop, self.client, spark, self.sink)

    def end_copy(self) -> None:
        """As the replicator does when all ranges are in the stream."""
        finished = SnapshotRecord("first", "0/1", CopyState.FINISHED, CopyMode.COPY, "2026-01-31", "", 7, "1", "shop", "")
        self.loop.run(Ledger(self.bucket).store_snapshot(finished))

    def follow(self, query: Query, *, drains: bool = False) -> None:
        """Until the query ends. Only one that drains may end by itself."""
        worker = replace(self.worker, target=DrainTarget(7, 0) if drains else None)
        between = BetweenBatches(worker, query)  # type: ignore[arg-type]
        if drains:
            between.follow(WorkerStopping(Pulse()))
            return
        with pytest.raises(TransientError, match="the batches ended unexpectedly"):
            between.follow(WorkerStopping(Pulse()))

    def close(self) -> None:
        self.sink.close()
        self.loop.run(disconnect(self.client))
        self.loop.close()


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    """A worker looks for executors between its batches."""
    with borrowed_spark() as spark:
        yield spark


@pytest.fixture
def harness(spark: Spark, nats_server: NatsServer, group: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(spark, nats_server, group, tmp_path / "changes.db")
    yield made
    made.close()


def test_a_copy_that_has_ended_is_finished_once(harness: Harness) -> None:
    harness.follow(Query([True, True]))
    assert harness.sink.finished == 0, "it has not ended"
    harness.end_copy()
    harness.follow(Query([True], applied=replace(COPIED, snapshot_sequence=6)))
    assert harness.sink.finished == 0, "it is not applied"
    harness.follow(Query([True, True, True]))
    assert harness.sink.finished == 1


def test_a_copy_whose_batches_leave_no_room_is_finished_at_a_later_turn(harness: Harness) -> None:
    harness.end_copy()
    harness.follow(Query([False, False]))
    assert harness.sink.finished == 0
    harness.follow(Query([False, True, True]))
    assert harness.sink.finished == 1


def test_while_other_tables_go_on_a_copy_is_finished_whether_batches_leave_room_or_not(harness: Harness) -> None:
    harness.end_copy()
    query = Query([False, False], applied=replace(COPIED, sequence=5, catch_up=CatchUp(1, 0, 0, frozenset({7}))))
    harness.follow(query)
    assert harness.sink.finished == 1
    assert query.looks == 1, "what waited for it may begin at once"


def test_a_copy_that_ends_with_the_query_is_finished_after_it(harness: Harness) -> None:
    harness.end_copy()
    harness.follow(Query([]), drains=True)
    assert harness.sink.finished == 1
    assert harness.sink.ticks == 0, "what has no last turn"


def test_a_duty_that_fails_for_now_is_done_at_its_next_turn_and_keeps_no_other_from_its_own(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.end_copy()
    harness.sink.failures = [TransientError("the target is away", "wait"), TransientError("the target is away", "wait")]
    harness.follow(Query([True, True, True]))
    assert harness.sink.finished == 1
    assert harness.sink.ticks == 3
    said = [each for each in caplog.records if each.getMessage() == "the work between batches failed, trying again"]
    assert len(said) == 1, "the same failure is news once"


def test_somebodys_decision_about_a_held_column_is_looked_for_while_no_batch_is_in_hand(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_definitions, "DECISIONS_INTERVAL_S", 0.0)
    position = Position(LSN(1), 1)
    settings = replace(harness.worker.settings, new_columns="hold")
    held = [HeldColumn(7, 3, "public.t", "more", str(position))]
    harness.loop.run(store_held(harness.bucket, settings.name, held))
    definitions = WorkerDefinitions(harness.loop, harness.bucket, settings, harness.sink)
    transformation = definitions.begin(UNTRANSFORMED)
    harness.worker = replace(harness.worker, definitions=definitions)
    harness.follow(Query([True]))
    assert transformation.held == {7: frozenset({3})}, "nobody decided"
    harness.loop.run(accept(harness.bucket, [position], "", "2026-01-31"))
    harness.follow(Query([False]))
    assert transformation.held == {7: frozenset({3})}, "a batch is in hand"
    harness.follow(Query([True]))
    assert transformation.held == {}


def test_a_stream_that_lost_what_is_applied_ends_the_worker(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_streams, "CHECK_INTERVAL_S", 0.0)
    ahead = replace(COPIED, sequence=9, commit_lsn=900, stream_created=harness.worker.streams.created())
    with pytest.raises(StreamBehindError):
        BetweenBatches(harness.worker, Query([True], applied=ahead)).follow(WorkerStopping(Pulse()))  # type: ignore[arg-type]


def test_duties_have_fewer_turns_while_nothing_is_applied(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_batches, "RESTS_AFTER_S", 0.0)
    resting = Query([True])
    harness.follow(resting)
    assert resting.pauses_s == [between_batches.RESTING_INTERVAL_S] * 2
    monkeypatch.undo()
    busy = Query([True])
    harness.follow(busy)
    assert busy.pauses_s == [POLL_INTERVAL_S] * 2


def test_a_batch_has_duties_done_more_often_again(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_batches, "RESTS_AFTER_S", 0.5)
    query = Query([True, True])
    between, began_at = BetweenBatches(harness.worker, query), time.monotonic()  # type: ignore[arg-type]
    tick = harness.sink.tick

    def tick_and_apply() -> None:
        tick()
        query.applied = replace(COPIED, snapshot_sequence=harness.sink.ticks)

    monkeypatch.setattr(harness.sink, "tick", tick_and_apply)
    wait_until(lambda: time.monotonic() - began_at > 0.5, what="the worker's rest")
    with pytest.raises(TransientError):
        between.follow(WorkerStopping(Pulse()))
    assert query.pauses_s == [between_batches.RESTING_INTERVAL_S, POLL_INTERVAL_S, POLL_INTERVAL_S]


@pytest.mark.parametrize("turns", [[], [True]])
def test_a_stop_is_obeyed_before_the_first_turn_and_after_each(harness: Harness, turns: list[bool]) -> None:
    stopping = WorkerStopping(Pulse())
    tick = harness.sink.tick

    def stop() -> None:
        stopping.request()
        wait_until(lambda: stopping.is_requested)

    def tick_and_stop() -> None:
        tick()
        stop()

    harness.sink.tick = tick_and_stop  # type: ignore[method-assign]
    if not turns:
        stop()
    with pytest.raises(StopRequested):
        BetweenBatches(harness.worker, Query([*turns, *turns])).follow(stopping)  # type: ignore[arg-type]
    assert harness.sink.ticks == len(turns)
