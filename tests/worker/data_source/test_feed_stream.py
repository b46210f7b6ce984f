"""Where reading begins and ends, and what is noticed of a stream that is not the one that was read: without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.published_tables import store_tables
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import HistoryError, MissingMessagesError, StreamBehindError, TerminalError, UsageError
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.position import LSN, NO_ANCHOR, POSTGRES_EPOCH, Anchor, Position
from pgsluice.testing.changes_builder import table
from pgsluice.worker.batches.broker_connection import BrokerConnection, OwnConnection
from pgsluice.worker.batches.planning import BatchLimit
from pgsluice.worker.data_source.feed_stream import FeedOffset, FeedRange, FeedStream, check_follows
from pgsluice.worker.data_source.read_options import read_settings
from tests.servers import NatsServer

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 24, compression="none", retention_s=60)
BETWEEN_COMMITS_S = 6  # less than commit times may be in disorder
ALL = BatchLimit(messages=1000, bytes=1 << 30)
ONE = BatchLimit(messages=1, bytes=1 << 30)


class Piece(NamedTuple):
    """A message with one change of that transaction."""

    transaction: int
    ordinal: int = 1
    commits: bool = True

    @property
    def anchor(self) -> Anchor:
        position = Position(LSN(self.transaction * 100), self.ordinal)
        return Anchor(position, self.transaction, self.transaction * BETWEEN_COMMITS_S * 1_000_000)


TORN = (Piece(1), Piece(2, 1, False), Piece(2, 2, False), Piece(2, 3), Piece(3))
"""The second transaction is in the messages 2 to 4."""


class Group:
    """What the broker holds of a group, and those who read it."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection

    def publish(self, *pieces: Piece, size: int = 1) -> None:
        """Into a stream that is made if there is none."""

        async def publish(client: Client) -> None:
            await StateBucket(client, self.connection.names).ensure(SETTINGS)
            stream = ChangeStream(client, self.connection.names)
            sequence = (await stream.ensure(SETTINGS)).last_sequence
            settled, after = sequence, NO_ANCHOR
            for piece in pieces:
                sequence += 1
                settled = sequence if piece.commits else settled
                headers = MessageHeaders(
                    *(piece.anchor.position, piece.anchor.position, LSN(0), settled, sequence * size),
                    anchor=piece.anchor,
                    after=after,
                )
                await client.jetstream().publish(stream.subject, b"x" * size, headers=headers.encode())
                after = piece.anchor

        self.connection.ask(publish)

    def remove_up_to(self, sequence: int) -> None:
        self.connection.ask(lambda client: ChangeStream(client, self.connection.names).purge_up_to(sequence))

    def remove_stream(self) -> None:
        self.connection.ask(lambda client: ChangeStream(client, self.connection.names).delete())

    def publish_tables(self, *names: str) -> None:
        async def publish(client: Client) -> None:
            tables = [table(name, "id bigint") for name in names]
            await store_tables(StateBucket(client, self.connection.names), tables, "UTF8")

        self.connection.ask(publish)

    def reader(self, **options: str) -> FeedStream:
        """Of a new query."""
        given = {name.rstrip("_").replace("_", "-"): text for name, text in options.items()}
        return FeedStream(self.connection, read_settings({"group": "g", "nats-url": "nats://unused"} | given))

    def at(self, sequence: int, anchor: Anchor | None = None, since: int = 0) -> FeedOffset:
        """A place in the stream that there is now."""
        return FeedOffset(self.reader().state().created, sequence, anchor, since)


@pytest.fixture
def there(nats_server: NatsServer, group: str) -> Iterator[Group]:
    connection = OwnConnection(nats_server.settings(), group)
    yield Group(connection)
    connection.close()


def seconds(number: float) -> int:
    return int(number * 1_000_000)


def moment(number: float) -> str:
    return (POSTGRES_EPOCH + timedelta(seconds=number)).isoformat()


def test_a_group_without_a_stream_is_named(there: Group) -> None:
    with pytest.raises(UsageError, match="there is no stream of changes of group 'g' at this NATS"):
        there.reader().start()


def test_a_stream_that_holds_nothing_has_nothing_to_read(there: Group) -> None:
    there.publish()
    assert there.reader().start() == there.at(0)
    assert there.reader().end() == 0
    assert there.reader().next_offset(there.at(0), ALL, None) == there.at(0)
    there.publish(Piece(1), Piece(2))
    there.remove_up_to(2)
    assert there.reader().start() == there.at(2)
    assert there.reader().next_offset(there.at(2), ALL, None) == there.at(2)
    assert there.reader().ranges(there.at(2), 2, 1) == []


def test_reading_begins_between_transactions(there: Group) -> None:
    there.publish(*TORN)
    assert there.reader().start() == there.at(0)
    assert there.reader(from_="1").start() == there.at(0)
    assert there.reader(from_="2").start() == there.at(1, TORN[0].anchor)
    for inside in ("3", "4"):
        assert there.reader(from_=inside).start() == there.at(1), "the anchor of what is before is not known there"
    assert there.reader(from_="5").start() == there.at(4, TORN[3].anchor)
    assert there.reader(from_="6").start() == there.at(5, TORN[4].anchor)
    with pytest.raises(UsageError, match="there is no message 7 yet: the stream ends at 5: give an earlier 'from'"):
        there.reader(from_="7").start()


def test_reading_ends_between_transactions(there: Group) -> None:
    there.publish(*TORN, Piece(4, 1, False))
    assert there.reader().end() == 5
    assert [there.reader(until=str(sequence)).end() for sequence in range(1, 7)] == [1, 1, 1, 4, 5, 5]
    with pytest.raises(UsageError, match="there is no message 7 yet: the stream ends at 6: give an earlier 'until'"):
        there.reader(until="7").end()


def test_reading_from_a_time_begins_as_much_earlier_as_commits_may_be_in_disorder(there: Group) -> None:
    there.publish(*(Piece(number) for number in range(1, 8)))
    assert there.reader(from_=moment(30)).start() == there.at(3, since=seconds(30)), "24 s is within 10 s of 30 s, 18 s is not"
    assert there.reader(from_=moment(28)).start() == there.at(2, since=seconds(28)), "18 s is within 10 s of 28 s"
    assert there.reader(from_=moment(0)).start() == there.at(0, since=0)
    assert there.reader(from_=datetime.now(UTC).isoformat()).start().sequence == 7


def test_what_committed_before_the_time_is_left_out_until_no_disorder_can_reach_that_far(there: Group) -> None:
    there.publish(*(Piece(number) for number in range(1, 6)))
    start = there.at(0, since=seconds(12))
    sinces = []
    while (end := there.reader().next_offset(start, ONE, None)) != start:
        sinces.append(end.since)
        start = end
    assert sinces == [seconds(12), seconds(12), seconds(12), 0, 0], "the fourth committed at 24 s"


def test_batches_end_between_transactions(there: Group) -> None:
    there.publish(*TORN, Piece(4, 1, False))
    reader = there.reader()
    assert reader.next_offset(there.at(0), ONE, None) == there.at(1, TORN[0].anchor)
    assert reader.next_offset(there.at(1), ONE, None) == there.at(4, TORN[3].anchor)
    assert reader.next_offset(there.at(0), ALL, None) == there.at(5, TORN[4].anchor)
    assert reader.next_offset(there.at(0), ALL, 4) == there.at(4, TORN[3].anchor)
    assert reader.next_offset(there.at(5), ALL, None) == there.at(5), "the fourth transaction is not complete"
    assert there.reader().next_offset(there.at(4, TORN[3].anchor), ALL, 4) == there.at(4, TORN[3].anchor)


def test_a_batch_is_tiled_and_its_first_part_knows_what_it_follows(there: Group) -> None:
    there.publish(*TORN, size=300_000)
    since, anchor = seconds(1), TORN[0].anchor
    assert there.reader().ranges(there.at(1, anchor, since), 5, parallelism=2) == [
        FeedRange(2, 3, True, anchor, since, ""),
        FeedRange(4, 5, False, None, since, ""),
    ]
    assert there.reader().ranges(there.at(5), 5, parallelism=2) == []


def test_a_stream_that_was_made_again_is_not_read_on(there: Group) -> None:
    there.publish(Piece(1), Piece(2))
    start = there.at(1)
    there.remove_stream()
    there.publish(Piece(1), Piece(2))
    for read_on in (lambda: there.reader().next_offset(start, ALL, None), lambda: there.reader().ranges(start, 2, 1)):
        with pytest.raises(HistoryError, match="the stream of group 'g' was created again since this query read it"):
            read_on()


def test_a_stream_that_lost_its_newest_messages_is_not_read_on(there: Group) -> None:
    there.publish(Piece(1), Piece(2))
    with pytest.raises(StreamBehindError, match="the stream ends at message 2, but 3 was read"):
        there.reader().next_offset(there.at(3), ALL, None)


def test_removed_messages_end_a_query_unless_it_may_go_on_without_them(there: Group) -> None:
    there.publish(*(Piece(number) for number in range(1, 6)))
    there.remove_up_to(3)
    for read_on in (
        lambda: there.reader().next_offset(there.at(1), ALL, None),
        lambda: there.reader().ranges(there.at(1), 5, 1),
        lambda: there.reader(from_="2").start(),
    ):
        with pytest.raises(MissingMessagesError, match="messages 2 to 3 of the stream were removed") as caught:
            read_on()
        assert caught.value.next_sequence == 4
    assert there.reader().start() == there.at(3)
    assert there.reader().next_offset(there.at(3), ALL, None).sequence == 5
    tolerant = there.reader(from_="2", fail_on_data_loss="false")
    assert tolerant.start() == there.at(3)
    assert tolerant.next_offset(there.at(1), ALL, None).sequence == 5
    assert [(part.first_sequence, part.is_first) for part in tolerant.ranges(there.at(1, TORN[0].anchor), 5, 1)] == [(4, True)]
    assert tolerant.ranges(there.at(1, TORN[0].anchor), 5, 1)[0].after is None, "what it follows is gone"


def test_reading_begins_where_a_transaction_ends_whose_beginning_was_removed(there: Group) -> None:
    there.publish(*TORN)
    there.remove_up_to(2)
    assert there.reader().start() == there.at(3)
    there.publish(Piece(4, 1, False), Piece(4, 2, False))
    there.remove_up_to(6)
    assert there.reader().start() == there.at(6), "the transaction is not complete yet"


def test_a_message_follows_the_one_that_was_read_before_it() -> None:
    first, second = Piece(1).anchor, Piece(2).anchor
    check_follows(2, first, first)
    check_follows(2, None, first)
    check_follows(2, first, None)
    with pytest.raises(HistoryError, match=r"message 2 follows the change at 0/C8:1, but the messages before it end at 0/64:1"):
        check_follows(2, second, first)
    with pytest.raises(HistoryError):  # a position that was given out twice
        check_follows(2, first._replace(xid=9), first)


def test_an_offset_is_what_spark_kept_of_it() -> None:
    for offset in (FeedOffset("made", 7), FeedOffset("made", 7, Piece(2, 3).anchor, seconds(30))):
        kept = json.loads(json.dumps(offset.encode()))
        assert FeedOffset.decode(kept | {"of a later version": 1}) == offset
    for other in ({}, {"offset": 3}, FeedOffset("made", 7).encode() | {"anchor": "0/1"}):
        with pytest.raises(TerminalError, match="the checkpoint is not one of the format pgsluice"):
            FeedOffset.decode(other)


def test_a_table_is_found_by_its_name(there: Group) -> None:
    there.publish(Piece(1))
    there.publish_tables("shop.orders", "public.orders", "public.lines")
    assert there.reader(table="lines").table().qualified_name == "public.lines"
    assert there.reader(table="shop.orders").table().qualified_name == "shop.orders"
    with pytest.raises(UsageError, match=r"several tables are called 'orders': public\.orders, shop\.orders: write the schema"):
        there.reader(table="orders").table()
    with pytest.raises(UsageError, match=r"group 'g' publishes no table 'line': did you mean 'lines'\?"):
        there.reader(table="line").table()
    with pytest.raises(UsageError, match="publishes no table 'zzz': 'pgsluice status' lists its tables"):
        there.reader(table="zzz").table()
