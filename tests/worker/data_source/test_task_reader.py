"""What a task reads of its part of a batch: without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.errors import HistoryError, MissingMessagesError
from pgsluice.shared.wire.position import NO_ANCHOR, Anchor
from pgsluice.worker.batches.broker_connection import BrokerConnection, process_connection
from pgsluice.worker.data_source.data_source import ChangeFeed, FeedPartition
from pgsluice.worker.data_source.feed_stream import FeedRange
from pgsluice.worker.data_source.read_options import read_settings
from tests.servers import NatsServer
from tests.worker.published_stream import position_of, publish_inserts


class Task:
    """Reads a stream of five messages with a row each."""

    def __init__(self, connection: BrokerConnection, options: dict[str, str]) -> None:
        self._connection, self._options = connection, options
        self._connection.ask(publish_inserts, connection.names.group, 5)

    def remove_up_to(self, sequence: int) -> None:
        self._connection.ask(lambda client: ChangeStream(client, self._connection.names).purge_up_to(sequence))

    def sequences(self, part: FeedRange, **options: str) -> list[int]:
        """Of the messages whose rows are read."""
        feed = ChangeFeed(self._options | options)
        batches = feed.reader(feed.schema()).read(FeedPartition(part))
        return [sequence for batch in batches for sequence in batch.column("sequence").to_pylist()]


@pytest.fixture
def task(nats_server: NatsServer, group: str) -> Iterator[Task]:
    options = {"group": group, "nats-url": nats_server.url}
    connection = process_connection(read_settings(options).nats, group, "reader")
    yield Task(connection, options)
    connection.close()


def part_of(first: int, last: int, after: Anchor | None = None, since: int = 0) -> FeedRange:
    return FeedRange(first, last, True, after, since, "")


def anchor_of(number: int) -> Anchor:
    return Anchor(position_of(number), number, number * 1_000_000)


def test_a_part_is_read_to_its_end_and_no_further(task: Task) -> None:
    assert task.sequences(part_of(2, 4)) == [2, 3, 4]
    assert task.sequences(part_of(1, 5, NO_ANCHOR)) == [1, 2, 3, 4, 5]
    assert task.sequences(part_of(3, 3, anchor_of(2))) == [3]


def test_a_part_that_does_not_follow_what_was_read_is_refused(task: Task) -> None:
    with pytest.raises(HistoryError, match="message 3 follows the change at 0/C8:1, but the messages before it end at 0/64:1"):
        task.sequences(part_of(3, 5, anchor_of(1)))


def test_what_committed_before_the_time_is_left_out(task: Task) -> None:
    assert task.sequences(part_of(1, 5, since=3_000_000)) == [3, 4, 5]


def test_messages_that_go_after_the_plan_was_made_are_missed_unless_the_query_may_go_on(task: Task) -> None:
    task.remove_up_to(3)
    with pytest.raises(MissingMessagesError, match="messages 2 to 3 of the stream were removed before this query read them"):
        task.sequences(part_of(2, 5, anchor_of(1)))
    assert task.sequences(part_of(2, 5, anchor_of(1)), **{"fail-on-data-loss": "false"}) == [4, 5]
