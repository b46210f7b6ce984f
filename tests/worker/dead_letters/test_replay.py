"""The driver's side of dead letters: publishing them once, and applying them once when that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pgsluice.rules.transformation import UNTRANSFORMED
from pgsluice.shared.broker.connection import connect
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, StoredLetter
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.changes_builder import Change, insert, table, transaction, update
from pgsluice.worker.batches.ownership import NEVER_COPIED, Copy, Ownership
from pgsluice.worker.dead_letters.exclusions import table_key
from pgsluice.worker.dead_letters.refusals import MOST_REFUSALS
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.dead_letters.replay import Replay
from pgsluice.worker.dead_letters.task_report import TaskReport
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.postgres.writer import INLINE_BYTES
from pgsluice.worker.sinks.sink import Applied
from tests.servers import Database, NatsServer
from tests.worker.encoded_changes import body_of
from tests.worker.sinks.postgres.conftest import Target

EVENTS = table("public.events", "id bigint", "note text", key=(), identity=ReplicaIdentity.FULL)
ORDERS = table("public.orders", "id bigint", "note text")
PASSED = Applied(10, 0, 0, "")


class DyingRegistry(DeadLetterRegistry):
    """That of a worker which dies before it takes letters out of the stream."""

    removals = 0
    """So many it lives to see."""

    def remove(self, letters: Sequence[StoredLetter]) -> None:
        if letters and not self.removals:
            raise KeyboardInterrupt
        self.removals -= bool(letters)
        super().remove(letters)


class Worker:
    """Registries and replays of one worker, one after the other, as processes would have them."""

    def __init__(self, loop: EventLoopThread, nats: NatsServer, group: str, target: Target) -> None:
        self.loop, self.target = loop, target
        self.client = loop.run(connect(nats.settings(), "test"))
        self.names = GroupNames(group)
        settings = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 24, compression="none", retention_s=60)
        loop.run(ChangeStream(self.client, self.names).ensure(settings))
        self.stream = DeadLetterStream(self.client, self.names)
        loop.run(self.stream.ensure_like(self.names.changes_stream))

    def registry(self, kind: type[DeadLetterRegistry] = DeadLetterRegistry, limit: int = 10) -> DeadLetterRegistry:
        registry = kind(self.loop, self.client, self.names, "w", limit)
        registry.load()
        return registry

    def replay(self, registry: DeadLetterRegistry, applied: Applied = PASSED) -> None:
        Replay(registry, UNTRANSFORMED, lambda: self.target.new_sink("w.replay")).run(applied)

    def queue(self, *letters: DeadLetter) -> None:
        """As when they became letters, and somebody asked for all of them."""
        for letter in letters:
            self.loop.run(self.stream.publish(letter))
        for letter in letters:
            self.loop.run(self.stream.ask(letter))

    def letters(self) -> list[StoredLetter]:
        return self.loop.run(self.stream.letters("w"))


@pytest.fixture
def worker(nats_server: NatsServer, group: str, target_database: Database) -> Iterator[Worker]:
    loop, target = EventLoopThread("test"), Target(target_database, INLINE_BYTES)
    made = Worker(loop, nats_server, group, target)
    yield made
    target.close()
    loop.run(made.client.close())
    loop.close()


def letter(number: int, change: Change, reason: str = "too long", sequence: int = 1) -> DeadLetter:
    position = Position(LSN(1000 * number), 1)
    body = body_of(transaction(1000 * number, change))
    return DeadLetter("w", position, change.table.qualified_name, reason, "2026-01-01T00:00:00Z", sequence, "", 1, body)


def reports(*letters: DeadLetter) -> list[TaskReport]:
    return [TaskReport(letters=letters)]


def take(registry: DeadLetterRegistry, *letters: DeadLetter) -> None:
    """New letters block rows, so the batch is to be written again."""
    with pytest.raises(WriteAgain):
        registry.take(reports(*letters))


def test_a_letter_is_published_once_whoever_finds_it_again(worker: Worker) -> None:
    first = letter(1, insert(ORDERS, b"1", b"x"))
    registry = worker.registry()
    take(registry, first)
    registry.take(reports(first))
    worker.registry().take(reports(first))  # a process that was started after a crash before the commit
    assert [stored.letter for stored in worker.letters()] == [first]
    assert worker.registry().exclusions(NEVER_COPIED).blocked == {table_key(ORDERS): {(b"1",): first.position}}


def test_a_large_letter_travels_in_chunks(worker: Worker) -> None:
    large = letter(1, insert(ORDERS, b"1", b"x" * 5_000_000))
    take(worker.registry(), large)
    (stored,) = worker.letters()
    assert stored.letter == large
    assert len(stored.sequences) > 1
    registry = worker.registry()
    registry.remove(registry.letters)
    assert worker.loop.run(worker.stream.state()).messages == 0  # type: ignore[union-attr]


def test_no_letter_is_published_beyond_the_limit(worker: Worker) -> None:
    registry = worker.registry(limit=1)
    with pytest.raises(TerminalError, match=r"2 changes of worker 'w' .*\(the first: too long\).*max-dead-letters \(1\)"):
        registry.take(reports(letter(1, insert(ORDERS, b"1", b"x")), letter(2, insert(ORDERS, b"2", b"x"))))
    assert worker.letters() == []


def test_letters_of_a_truncated_table_go_when_the_truncation_is_applied(worker: Worker) -> None:
    registry = worker.registry()
    take(
        registry,
        letter(1, insert(ORDERS, b"1", b"x")),
        letter(3, insert(ORDERS, b"3", b"x")),
        letter(2, insert(EVENTS, b"1", b"x")),
    )
    oid, position = ORDERS.oid, Position(LSN(2500), 1)
    registry.take([TaskReport(truncated=((oid, position),))])
    registry.remove_truncated()
    assert [stored.letter.table for stored in worker.letters()] == ["public.events", "public.orders"]


def test_letters_of_a_table_that_is_copied_again_go_unless_they_are_newer_than_the_copy(worker: Worker) -> None:
    registry = worker.registry()
    take(registry, letter(1, insert(ORDERS, b"1", b"x")), letter(3, insert(ORDERS, b"3", b"x")))
    assert [*registry.exclusions(Ownership({ORDERS.oid: Copy("second", 2000)})).blocked.values()] == [
        {(b"3",): Position(LSN(3000), 1)}
    ]
    assert [str(stored.letter.position) for stored in worker.letters()] == ["0/BB8:1"]


def test_when_the_first_letter_of_a_row_is_discarded_the_later_ones_are_applied_without_it(worker: Worker) -> None:
    worker.target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note varchar(3))")
    worker.queue(letter(1, insert(ORDERS, b"1", b"long")), letter(2, insert(ORDERS, b"1", b"ok")))
    worker.loop.run(worker.stream.remove(worker.letters()[:1]))
    worker.replay(worker.registry())
    assert (worker.letters(), worker.target.table("public", "orders")) == ([], [("1", "ok")])


@pytest.mark.parametrize("letters", [1, 3])
def test_a_replay_that_a_crash_interrupted_is_not_applied_twice(worker: Worker, letters: int) -> None:
    worker.target.execute("CREATE TABLE events (id bigint, note text)")
    worker.queue(*(letter(n, insert(EVENTS, b"%d" % n, b"x")) for n in range(1, letters + 1)))
    with pytest.raises(KeyboardInterrupt):
        worker.replay(worker.registry(DyingRegistry))
    assert len(worker.letters()) == letters
    worker.replay(worker.registry())
    assert worker.letters() == []
    assert len(worker.target.table("public", "events")) == letters


MANY = MOST_REFUSALS + 20
"""Letters that are applied in two pieces."""


def test_many_letters_whose_cause_is_still_there_come_back_each_with_its_reason(worker: Worker) -> None:
    worker.target.execute("CREATE TABLE events (id bigint, note varchar(3))")
    worker.queue(*(letter(n, insert(EVENTS, b"%d" % n, b"long" if n < MANY else b"x")) for n in range(1, MANY + 1)))
    worker.replay(worker.registry())
    found = worker.letters()
    assert [(stored.is_queued, stored.letter.attempts) for stored in found] == [(False, 2)] * (MANY - 1)
    assert all("SQLSTATE 22001" in stored.letter.reason for stored in found)
    assert worker.target.table("public", "events") == [(str(MANY), "x")]


@pytest.mark.parametrize("removals", [0, 1])
def test_a_replay_of_many_letters_that_a_crash_interrupted_is_not_applied_twice(worker: Worker, removals: int) -> None:
    """The worker dies after the first piece or after the second one; a letter of each piece is refused again."""
    worker.target.execute("CREATE TABLE events (id bigint, note varchar(3))")
    refused = 50, MANY - 5
    worker.queue(*(letter(n, insert(EVENTS, b"%d" % n, b"long" if n in refused else b"x")) for n in range(1, MANY + 1)))
    registry = worker.registry(DyingRegistry)
    assert isinstance(registry, DyingRegistry)
    registry.removals = removals
    with pytest.raises(KeyboardInterrupt):
        worker.replay(registry)
    worker.replay(worker.registry())
    assert [stored.letter.position.commit_lsn for stored in worker.letters()] == [1000 * n for n in refused]
    applied = sorted(int(key) for key, _ in worker.target.table("public", "events"))
    assert applied == [n for n in range(1, MANY + 1) if n not in refused]


def test_a_letter_waits_until_the_worker_has_come_to_where_it_is_from(worker: Worker) -> None:
    worker.target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    worker.queue(letter(1, insert(ORDERS, b"1", b"x"), sequence=11))
    worker.replay(worker.registry())
    assert worker.target.table("public", "orders") == []
    worker.replay(worker.registry(), Applied(11, 0, 0, ""))
    assert worker.target.table("public", "orders") == [("1", "x")]


def test_what_is_refused_again_comes_back_with_the_later_letters_of_its_row(worker: Worker) -> None:
    worker.target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note varchar(3))")
    worker.queue(
        letter(1, insert(ORDERS, b"1", b"long")), letter(2, insert(ORDERS, b"2", b"ok")), letter(3, update(ORDERS, b"1", b"ok"))
    )
    worker.replay(worker.registry())
    assert worker.target.table("public", "orders") == [("2", "ok")]
    first, behind = worker.letters()
    assert (first.is_queued, first.letter.attempts, behind.is_queued, behind.letter.attempts) == (False, 2, False, 2)
    assert "SQLSTATE 22001" in first.letter.reason


def test_of_a_letter_that_is_there_twice_the_one_that_was_refused_again_counts_and_earlier_requests_do_not(
    worker: Worker,
) -> None:
    """As when a worker died before it had removed the older one."""
    first = letter(1, insert(ORDERS, b"1", b"x"))
    worker.queue(first)
    assert [stored.is_queued for stored in worker.letters()] == [True]
    worker.loop.run(worker.stream.publish(first.refused_again("still too long")))
    assert [(stored.is_queued, stored.letter.attempts) for stored in worker.letters()] == [(False, 2)]
    worker.registry().remove(worker.letters())
    assert worker.loop.run(worker.stream.state()).messages == 0  # type: ignore[union-attr]


def test_a_request_that_comes_when_its_letter_is_applied_brings_nothing_back(worker: Worker) -> None:
    worker.target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    first = letter(1, insert(ORDERS, b"1", b"x"))
    worker.queue(first)
    worker.replay(worker.registry())
    worker.target.execute("UPDATE orders SET note = 'newer'")
    worker.loop.run(worker.stream.ask(first))
    worker.replay(worker.registry())
    assert (worker.letters(), worker.target.table("public", "orders")) == ([], [("1", "newer")])
    assert worker.loop.run(worker.stream.state()).messages == 0  # type: ignore[union-attr]


def test_what_is_asked_for_waits_for_earlier_letters_of_its_row_that_cannot_be_applied_yet(worker: Worker) -> None:
    worker.target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    early, other = letter(1, insert(ORDERS, b"1", b"x"), sequence=11), letter(2, insert(ORDERS, b"2", b"x"))
    late = letter(3, update(ORDERS, b"1", b"y"))
    worker.loop.run(worker.stream.publish(early))
    worker.queue(late, other)
    worker.replay(worker.registry())
    assert worker.target.table("public", "orders") == [("2", "x")]
    worker.replay(worker.registry(), Applied(11, 0, 0, ""))
    assert worker.target.table("public", "orders") == [("1", "y"), ("2", "x")]
