"""What readers of a group that ``worker nats`` publishes rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, connected, disconnect
from pgsluice.shared.broker.published_tables import load_tables, store_tables
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.errors import HistoryError, TransientError
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table
from pgsluice.testing.batch import STREAM_CREATED, Batch, apply, apply_copied, write
from pgsluice.testing.changes_builder import insert, message, message_of, transaction
from pgsluice.testing.changes_contract import broken_off
from pgsluice.testing.tried_batches import ACCOUNTS, EVENTS, LARGE_NOTE, batch, copied_batch, position
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.positions.check import Start
from pgsluice.worker.sinks.nats.change_bodies import FIRST_LSN, body_of_message
from pgsluice.worker.sinks.nats.derived_group import DerivedEnd
from pgsluice.worker.sinks.nats.sink import NatsSink
from pgsluice.worker.sinks.sink import Applied
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.sinks.nats.test_contract import GroupDestination, tell_group

LETTER = message_of(7, transaction(1000, insert(EVENTS, b"70", b"n"), first_ordinal=3))


@pytest.fixture
def destination(nats_server: NatsServer, group: str) -> GroupDestination:
    tell_group(nats_server.settings(), group)
    return GroupDestination(nats_server.settings(), group)


def in_three_messages(commit_lsn: int) -> Batch:
    """One transaction of three events, each in a partition of its own."""
    return [
        [
            message_of(
                n, transaction(commit_lsn, insert(EVENTS, b"%d" % n, b"n"), first_ordinal=n - 1, committed_at=9, commits=n == 4)
            )
        ]
        for n in (2, 3, 4)
    ]


def copy_rows(destination: GroupDestination, sink: NatsSink) -> None:
    apply_copied(sink, copied_batch([10]))


def replay_a_letter(destination: GroupDestination, sink: NatsSink) -> None:
    replay = destination.new_sink(name="sink.replay")
    replay.open()
    apply(replay, [[LETTER]], "dead letters")
    replay.close()
    sink.open()


def renumber(destination: GroupDestination, sink: NatsSink) -> None:
    sink.renumber(replace(sink.open(), sequence=1))


@pytest.mark.parametrize(("between", "more"), [(copy_rows, [20, 21]), (replay_a_letter, [70]), (renumber, [])])
def test_what_comes_into_a_transaction_that_broke_off_leaves_it_open_until_its_end(
    between: Callable[[GroupDestination, NatsSink], None], more: list[int], destination: GroupDestination
) -> None:
    """As when the worker dies in a large transaction, and a table was added, or a letter is to be replayed, when it starts."""
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))
    with pytest.raises(TransientError):
        sink.commit(broken_off(write(sink, in_three_messages(7000))), STREAM_CREATED)
    sink.close()
    successor = destination.new_sink()
    successor.open()
    between(destination, successor)
    apply(successor, in_three_messages(7000))
    successor.close()
    assert destination.delivered() == [2, 3, 2, *more, 3, 4]
    stored = destination.reader.stored()
    headers = [MessageHeaders.decode(each.headers) for each in stored]
    assert [each.settled for each in headers] == [1] * (len(stored) - 1) + [len(stored)]
    assert [each.flushed for each in headers] == [1000] * (len(stored) - 1) + [7000]
    commits = [
        [each.commits for each in decode_changes(one.data, first_sequence=1, sequence=1, first_ordinal=1).transactions]
        for one in stored
    ]
    assert [each for each in commits if each] == [[True], [False], *([False] for _ in more[:1]), [False], [True]]


def test_old_messages_make_room_in_a_full_stream_when_they_are_to_go(nats_server: NatsServer, group: str) -> None:
    """JetStream removes none of them by itself."""
    tell_group(nats_server.settings(), group)
    destination = GroupDestination(nats_server.settings(), group, max_bytes=1 << 20, max_age_s=1.0)
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1], note=LARGE_NOTE))
    apply(sink, batch([2]))

    def has_room() -> bool:
        try:
            return apply(sink, batch([3], note=LARGE_NOTE)) == position(3)
        except TransientError:
            return False

    assert not has_room()
    wait_until(has_room, deadline_s=20, what="room in the stream", interval_s=0.5)
    sink.close()


def test_chunks_that_were_given_up_leave_nothing_open() -> None:
    first, second = (body_of_message(message(n, insert(EVENTS, b"1", b"n" * 100)), None) for n in (1, 2))
    *_, (_, end) = DerivedEnd().pieces(first, "", 50)
    (message_of_chunk, chunk), *_ = end.pieces(second, "", 50)
    headers = dict(line.split(":", 1) for line in message_of_chunk.headers.decode().splitlines())
    assert DerivedEnd.of(chunk.sequence, headers) == chunk
    assert not end.is_open
    assert not chunk.is_open


def test_a_transaction_stays_open_when_chunks_of_its_rest_are_given_up() -> None:
    first, _, rest = (body_of_message(part[0], None) for part in in_three_messages(7000))
    assert rest is not None
    *_, (_, end) = DerivedEnd().pieces(first, "", 1 << 20)
    (_, chunk), *_, (_, last) = end.pieces(rest, "", 50)
    assert [each.is_open for each in (end, chunk, last)] == [True, True, False]


def test_a_change_of_which_a_chunk_is_missing_is_neither_applied_nor_whole(nats_server: NatsServer, group: str) -> None:
    """The stream became full between its chunks."""
    tell_group(nats_server.settings(), group)
    small, larger = (GroupDestination(nats_server.settings(), group, max_bytes=size) for size in (3 << 19, 1 << 30))
    sink = small.new_sink()
    sink.open()
    apply(sink, batch([1]))
    with pytest.raises(TransientError, match="is full"):
        apply(sink, batch([2], note=b"x" * 1_000_000))
    sink.close()
    successor = larger.new_sink()
    assert successor.open() == position(1)
    assert apply(successor, batch([2], note=b"x" * 1_000_000)) == position(2)
    successor.close()
    headers = [MessageHeaders.decode(each.headers) for each in larger.reader.stored()]
    assert [str(each.chunk) for each in headers] == ["1/1", "1/2", "1/2", "2/2"]
    assert [each.settled for each in headers] == [1, 1, 1, 4]
    assert [each.flushed for each in headers] == [1000, 1000, 1000, 2000]


def test_a_transaction_whose_commit_comes_alone_ends_with_it(destination: GroupDestination) -> None:
    opened, ended = in_three_messages(7000)[0][0], message_of(3, transaction(7000, first_ordinal=2, committed_at=9))
    sink = destination.new_sink()
    sink.open()
    apply(sink, [[opened], [ended]])
    sink.close()
    headers = [MessageHeaders.decode(each.headers) for each in destination.reader.stored()]
    assert [(each.flushed, each.settled) for each in headers] == [(0, 0), (7000, 2)]


def test_batches_of_which_rules_leave_nothing_follow_each_other_at_once(destination: GroupDestination) -> None:
    """JetStream drops a message whose id it has seen a moment ago."""
    sink = destination.new_sink()
    sink.open()
    for number in range(1, 4):
        assert apply(sink, [[message_of(number, transaction(1000 * number, committed_at=number))]]) == position(number)
    sink.close()
    assert len(destination.reader.stored()) == 3


def test_tables_that_joined_since_the_start_are_told_to_the_groups_workers(
    destination: GroupDestination, nats_server: NatsServer, group: str
) -> None:
    """Whose rules are held against them."""

    async def publish_tables(*tables: Table) -> None:
        async with connected(nats_server.settings(), "test") as client:
            await store_tables(StateBucket(client, GroupNames(group)), tables, "UTF8")

    async def told() -> list[str]:
        async with connected(nats_server.settings(), "test") as client:
            return [each.name for each in await load_tables(StateBucket(client, GroupNames(f"{group}-next"))) or []]

    sink = destination.new_sink()
    sink.open()
    assert asyncio.run(told()) == []
    for number, tables in enumerate(([EVENTS], [EVENTS, ACCOUNTS]), 1):
        asyncio.run(publish_tables(*tables))
        apply(sink, batch([number]))
        assert asyncio.run(told()) == [each.name for each in tables]
    sink.close()


def test_a_reader_that_copied_rows_were_removed_before_stops_though_all_of_them_follow_the_same_commit(
    destination: GroupDestination, nats_server: NatsServer, group: str
) -> None:
    """It was away for longer than messages stay."""
    sink = destination.new_sink()
    sink.open()
    for number in range(1, 5):
        apply_copied(sink, copied_batch([number]))
    sink.close()
    names, loop = GroupNames(f"{group}-next"), EventLoopThread("test")
    try:
        client = loop.run(connect(nats_server.settings(), "test"))
        streams = GroupStreams(loop, client, names)
        applied = Applied(1, FIRST_LSN, 0, streams.created())
        assert streams.find_start(applied) == Start(applied)
        loop.run(ChangeStream(client, names).purge_up_to(1))
        assert streams.find_start(applied) == Start(applied)
        loop.run(ChangeStream(client, names).purge_up_to(3))
        with pytest.raises(HistoryError, match="messages 2 to 3 were not applied"):
            streams.find_start(applied)
        loop.run(disconnect(client))
    finally:
        loop.close()
