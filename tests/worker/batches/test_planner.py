"""What the next batch is, and how it is waited for: on a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import CopyState, Ledger
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.batches import planner as planner_module
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.change_reader import ChangeReader
from pgsluice.worker.batches.planner import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    LONGEST_PAUSE_WHERE_IT_RINGS_S,
    PAUSE_GROWTH,
    BatchPlanner,
    Copies,
    LanePlaces,
    PlannedBatch,
    WakeUp,
)
from pgsluice.worker.batches.planning import COPIED_MESSAGE_BYTES, BatchLimit, SequenceRange
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.sink import Lane
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.published_copy import ORDERS, copy_publisher, snapshot_record
from tests.worker.published_stream import publish_inserts

LONGEST_S = 30.0
LIMIT = BatchLimit(messages=1000, bytes=1 << 24)


class Group:
    """A stream of a test, and what plans its batches."""

    def __init__(self, nats: NatsServer, group: str) -> None:
        self.names = GroupNames(group)
        self.loop = EventLoopThread("test-planner")
        self.client = self.loop.run(connect(nats.settings(), "test"))
        self.wake_up = WakeUp()

    def planner(
        self,
        limit: BatchLimit = LIMIT,
        drain_to: int | None = None,
        unready: Callable[[int], frozenset[int]] = lambda _: frozenset(),
        *,
        streamed: bool = False,
    ) -> BatchPlanner:
        copies, connection = Copies(unready, is_finished=lambda _: True), BrokerConnection(self.names, self.loop, self.client)
        return BatchPlanner(connection, self.wake_up, limit, drain_to, copies, streamed=streamed)

    def publish(self, count: int, first: int = 1) -> None:
        self.loop.run(publish_inserts(self.client, self.names.group, count, first))

    def size(self) -> int:
        """Of the stream's bodies, as its last message counts it."""
        mark = ChangeReader(BrokerConnection(self.names, self.loop, self.client)).peek_last()
        assert mark is not None
        return mark.bytes_through

    def copy(self, state: CopyState, attempts: Sequence[int], rows: int) -> None:
        """A begin message for each attempt at one table, and messages of rows."""

        async def publish() -> None:
            messages = await copy_publisher(self.client, self.names.group)
            for attempt in attempts:
                await messages.begin(ORDERS, attempt)
            for _ in range(rows):
                await messages.rows(ORDERS, b"rows")

        self.loop.run(publish())
        self.note_copy(state)

    def note_copy(self, state: CopyState, last_sequence: int = 0) -> None:
        bucket = StateBucket(self.client, self.names)
        self.loop.run(Ledger(bucket).store_snapshot(snapshot_record(state, last_sequence)))

    def close(self) -> None:
        self.loop.run(disconnect(self.client))
        self.loop.close()


@pytest.fixture
def stream(nats_server: NatsServer, group: str) -> Iterator[Group]:
    made = Group(nats_server, group)
    yield made
    made.close()


def test_a_batch_begins_where_the_one_before_it_ended(stream: Group) -> None:
    stream.publish(5)
    planner = stream.planner(BatchLimit(messages=2, bytes=1 << 20))
    place, batches = LanePlaces(0, 0), []
    while (batch := planner.next(place, 2, 0.0)) is not None:
        batches.append(batch)
        place = batch.end
    assert [batch.ranges for batch in batches] == [
        (SequenceRange(Lane.CHANGES, first, last, 1),) for first, last in ((1, 2), (3, 4), (5, 5))
    ]
    assert place == LanePlaces(0, 5)
    assert not any(batch.is_fence or batch.lane is not Lane.CHANGES for batch in batches)


def test_what_is_delivered_while_the_next_is_written_is_in_smaller_partitions(
    stream: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.publish(12)
    monkeypatch.setattr(planner_module, "STREAMED_PARTITION_BYTES", -(-stream.size() // 3))
    copied = LanePlaces(0, 12)
    planned = [stream.planner(streamed=streamed).next(LanePlaces(0, 0), 2, 0.0) for streamed in (False, True)]
    assert [batch and len(batch.ranges) for batch in planned] == [1, 3]
    stream.copy(CopyState.RUNNING, attempts=[1], rows=5)
    monkeypatch.setattr(planner_module, "STREAMED_PARTITION_BYTES", 2 * COPIED_MESSAGE_BYTES)
    planned = [stream.planner(streamed=streamed).next(copied, 2, 0.0) for streamed in (False, True)]
    assert [batch and len(batch.ranges) for batch in planned] == [2, 3]


def test_a_worker_that_ends_by_itself_takes_no_more_than_it_has_to(stream: Group) -> None:
    stream.publish(5)
    planner = stream.planner(drain_to=3)
    batch = planner.next(LanePlaces(0, 0), 2, 0.0)
    assert batch is not None
    assert batch.end == LanePlaces(0, 3)
    assert planner.next(batch.end, 2, 0.0) is None


def test_copied_rows_come_first_and_changes_when_the_copy_is_finished_and_applied(stream: Group) -> None:
    stream.publish(2)
    stream.copy(CopyState.RUNNING, attempts=[1], rows=2)
    planner = stream.planner()
    copied = planner.next(LanePlaces(0, 0), 2, 0.0)
    assert copied is not None
    assert (copied.end, copied.lane, copied.is_fence) == (LanePlaces(3, 0), Lane.COPIED, False)
    assert [part.lane for part in copied.ranges] == [Lane.COPIED] * len(copied.ranges)
    assert planner.next(copied.end, 2, 0.0) is None, "more may be copied"
    stream.note_copy(CopyState.FINISHED, 3)
    changes = planner.next(copied.end, 2, 0.0)
    assert changes is not None
    assert (changes.end, changes.lane) == (LanePlaces(3, 2), Lane.CHANGES)


def test_the_end_of_the_changes_is_looked_up_before_which_tables_are_copied(stream: Group) -> None:
    """A message that comes in between may be of a table that is to be copied since, and no earlier copy's."""
    stream.publish(2)
    stream.copy(CopyState.RUNNING, attempts=[], rows=0)

    def unready(_: int) -> frozenset[int]:
        stream.publish(3, first=3)
        return frozenset({ORDERS})

    batch = stream.planner(unready=unready).next(LanePlaces(0, 1), 2, 0.0)
    assert batch is not None
    assert (batch.lane, batch.end, batch.cohort) == (Lane.CHANGES, LanePlaces(0, 2, 1, frozenset({ORDERS})), frozenset({ORDERS}))


def test_lanes_take_turns_whatever_is_planned_and_thrown_away(stream: Group) -> None:
    stream.publish(9)
    stream.copy(CopyState.RUNNING, attempts=[1], rows=5)
    planner = stream.planner(BatchLimit(messages=1, bytes=1 << 20), unready=lambda _: frozenset({ORDERS}))
    place, lane, lanes = LanePlaces(0, 1), Lane.COPIED, []
    for _ in range(6):
        batch = planner.next(place, 2, 0.0, lane)
        assert batch is not None
        planner.next(batch.end, 2, 0.0, batch.lane)  # as who writes ahead does
        place, lane = batch.end, batch.lane
        lanes.append(lane)
    assert lanes == [Lane.CHANGES, Lane.COPIED] * 3


def test_who_catches_up_leaves_the_others_their_turn_until_one_batch_is_enough(
    stream: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "SHARED_MESSAGES", 2)
    stream.publish(9)
    stream.note_copy(CopyState.FINISHED)
    planner, place, lane, ends = stream.planner(), LanePlaces(0, 5, 0, frozenset({ORDERS})), Lane.CHANGES, []
    while (batch := planner.next(place, 2, 0.0, lane)) is not None:
        place, lane = batch.end, batch.lane
        ends.append((lane, place.changes, place.caught_up))
    assert ends == [
        (Lane.CATCH_UP, 5, 2),
        (Lane.CHANGES, 7, 2),
        (Lane.CATCH_UP, 7, 4),
        (Lane.CHANGES, 9, 4),
        (Lane.CATCH_UP, 9, 6),
        (Lane.CATCH_UP, 9, 8),
        (Lane.CATCH_UP, 9, 0),
    ]
    assert place == LanePlaces(0, 9)
    joins = planner.next(LanePlaces(0, 5, 3, frozenset({ORDERS})), 2, 0.0, Lane.CATCH_UP)
    assert joins is not None
    assert (joins.lane, joins.end) == (Lane.CATCH_UP, LanePlaces(0, 5)), "before the others move on"


def test_a_table_that_is_begun_again_is_a_batch_that_nothing_may_overlap(stream: Group) -> None:
    stream.publish(1)
    stream.copy(CopyState.RUNNING, attempts=[1, 2], rows=1)
    planner, place, batches = stream.planner(), LanePlaces(0, 0), []
    while (batch := planner.next(place, 2, 0.0)) is not None:
        batches.append((batch.end.snapshot, batch.is_fence))
        place = batch.end
    assert batches == [(1, False), (2, True), (3, False)]


@pytest.mark.parametrize(("drain_to", "last"), [(None, 3), (1, 1)])
def test_while_the_stream_grows_fast_a_batch_gathers_what_comes(
    stream: Group, monkeypatch: pytest.MonkeyPatch, drain_to: int | None, last: int
) -> None:
    """Not for a worker that ends by itself, which has nothing to wait for."""
    stream.publish(1)
    size = stream.size()
    for name, value in (("FROM_BYTES", 1), ("BYTES", 3 * size), ("RATE", 0), ("S", LONGEST_S)):
        monkeypatch.setattr(planner_module, f"GATHER_{name}", value)
    found: list[PlannedBatch | None] = []
    planner = stream.planner(drain_to=drain_to)
    planning = threading.Thread(target=lambda: found.append(planner.next(LanePlaces(0, 0), 2, LONGEST_S)), daemon=True)
    planning.start()
    if drain_to is not None:
        planning.join(LONGEST_S)
    stream.publish(3, first=2)
    planning.join(LONGEST_S)
    assert [batch and batch.end for batch in found] == [LanePlaces(0, last)]


def test_nothing_new_is_waited_for_until_patience_ends(stream: Group) -> None:
    stream.publish(1)
    started = time.monotonic()
    assert stream.planner().next(LanePlaces(0, 1), 2, 0.2) is None
    assert time.monotonic() - started >= 0.2


def test_who_is_to_end_waits_no_longer(stream: Group) -> None:
    """However much patience there is left, and whatever there is to be found."""
    stream.publish(1)
    found: list[PlannedBatch | None] = []
    planner = stream.planner()
    waiting = threading.Thread(target=lambda: found.append(planner.next(LanePlaces(0, 1), 2, 10 * LONGEST_S)), daemon=True)
    waiting.start()
    wait_until(lambda: stream.wake_up.pause_s == LONGEST_PAUSE_S, deadline_s=LONGEST_S, what="a long wait")
    planner.end()
    waiting.join(LONGEST_S)
    assert found == [None]
    assert planner.next(LanePlaces(0, 0), 2, 0.0) is None


@pytest.mark.parametrize("rings", [True, False])
def test_what_comes_ends_the_wait_whether_the_bell_is_rung_or_not(stream: Group, rings: bool) -> None:
    stream.loop.run(stream.wake_up.listen(stream.client, stream.names))
    stream.publish(1)
    found: list[PlannedBatch | None] = []
    planner = stream.planner()
    waiting = threading.Thread(target=lambda: found.append(planner.next(LanePlaces(0, 1), 2, LONGEST_S)), daemon=True)
    waiting.start()
    wait_until(lambda: stream.wake_up.pause_s == LONGEST_PAUSE_S, deadline_s=LONGEST_S, what="a long wait")
    stream.publish(2, first=2)
    if rings:
        stream.loop.run(stream.client.publish(stream.names.bell_subject))
    waiting.join(LONGEST_S)
    assert [batch and batch.end for batch in found] == [LanePlaces(0, 2)]


def test_after_a_batch_the_next_one_is_looked_for_soon_though_nobody_rings(stream: Group) -> None:
    stream.publish(1)
    stream.wake_up.pause_s = LONGEST_PAUSE_S
    assert stream.planner().next(LanePlaces(0, 0), 2, 0.0) is not None
    assert stream.wake_up.pause_s == FIRST_PAUSE_S


def test_the_bell_ends_a_wait_at_once_and_makes_the_next_one_short(stream: Group) -> None:
    wake_up = stream.wake_up
    stream.loop.run(wake_up.listen(stream.client, stream.names))
    wake_up.pause_s = 10 * LONGEST_S
    waiting = threading.Thread(target=lambda: wake_up.wait(time.monotonic() + 10 * LONGEST_S), daemon=True)
    waiting.start()
    stream.loop.run(stream.client.publish(stream.names.bell_subject))
    waiting.join(LONGEST_S)
    assert not waiting.is_alive()
    assert wake_up.pause_s == FIRST_PAUSE_S
    assert not wake_up.wait(time.monotonic()), "the deadline has passed"


def test_pauses_may_grow_longer_as_long_as_news_are_rung_for(stream: Group) -> None:
    wake_up = stream.wake_up
    assert wake_up.longest_pause_s == LONGEST_PAUSE_S
    wake_up.ring()
    wake_up.note_look()
    stream.publish(1)
    assert stream.planner().next(LanePlaces(0, 0), 2, 0.0) is not None
    assert wake_up.longest_pause_s == LONGEST_PAUSE_WHERE_IT_RINGS_S
    wake_up.pause_s = LONGEST_PAUSE_WHERE_IT_RINGS_S / PAUSE_GROWTH
    wake_up._rung.set()
    assert wake_up.wait(time.monotonic() + LONGEST_S)
    assert wake_up.pause_s < LONGEST_PAUSE_WHERE_IT_RINGS_S, "a wait that a ring ended is not followed by a longer one"
    wake_up.note_look()
    wake_up.pause_s = FIRST_PAUSE_S
    assert wake_up.wait(time.monotonic() + LONGEST_S), "nobody rings"
    assert wake_up.pause_s == FIRST_PAUSE_S * PAUSE_GROWTH
    assert stream.planner().next(LanePlaces(0, 0), 2, 0.0) is not None
    assert wake_up.longest_pause_s == LONGEST_PAUSE_S
    wake_up.ring()
    assert stream.planner().next(LanePlaces(0, 0), 2, 0.0) is not None, "without a wait"
    assert wake_up.longest_pause_s == LONGEST_PAUSE_WHERE_IT_RINGS_S


def test_what_rang_before_a_look_does_not_end_the_wait_after_it(stream: Group) -> None:
    wake_up, pause_s = stream.wake_up, 0.1
    wake_up.ring()
    wake_up.note_look()
    wake_up.pause_s = pause_s
    started = time.monotonic()
    assert wake_up.wait(started + LONGEST_S)
    assert time.monotonic() - started >= pause_s
