"""The contract of all sinks, but for copied rows: of these there are no events."""

from __future__ import annotations

import pickle

import pytest

from pgsluice.testing.batch import STREAM_CREATED, write_partition
from pgsluice.testing.tried_batches import batch, events, followed_accounts
from pgsluice.worker.sinks.sink import PartitionWriter, Sink
from pgsluice.worker.sinks.subscriptions.sink import SubscriptionsSink
from tests.servers.http_server import HttpServer
from tests.worker.sinks.contract import Destination, SinkContract
from tests.worker.sinks.subscriptions.subscribed import Stage
from tests.worker.sinks.test_contract import counting_events

pytestmark = pytest.mark.timeout(120)


class SubscribedDestination:
    """One receiver that subscribed to everything."""

    is_exactly_once = False

    def __init__(self, stage: Stage, receiver: HttpServer) -> None:
        self._stage = stage
        self._receiver = receiver
        stage.subscribe(receiver, "all")

    def new_sink(self) -> SubscriptionsSink:
        return self._stage.new_sink(patience_s=60.0, batch_size=3)

    def delivered(self) -> list[int]:
        return counting_events(self._receiver.objects())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self._receiver.objects())


class TestSubscriptions(SinkContract):
    kind = "subscriptions"

    test_copied_rows_are_delivered_and_move_their_own_position = None  # type: ignore[assignment]
    test_large_partitions_of_copied_rows_are_delivered_whole = None  # type: ignore[assignment]
    test_copied_rows_that_are_written_twice_are_delivered_once = None  # type: ignore[assignment]
    test_copied_rows_that_are_committed_twice_are_delivered_once = None  # type: ignore[assignment]
    test_after_a_crash_between_write_and_commit_copied_rows_are_delivered_once = None  # type: ignore[assignment]
    test_the_same_sink_applies_copied_rows_after_an_error_once = None  # type: ignore[assignment]
    test_rows_that_were_copied_before_their_table_was_begun_anew_do_not_count = None  # type: ignore[assignment]
    test_changes_go_on_after_the_copy = None  # type: ignore[assignment]
    test_a_copy_may_be_finished_at_any_time = None  # type: ignore[assignment]

    def test_a_writer_can_be_sent_to_another_process(self, destination: Destination, sink: Sink) -> None:
        writer: PartitionWriter = pickle.loads(pickle.dumps(sink.writer()))
        receipts = [receipt for messages in batch([1], [2]) for receipt in write_partition(writer, messages)]
        assert sink.commit(receipts, STREAM_CREATED).sequence == 2
        assert destination.delivered() == events(2)

    @pytest.fixture
    def destination(self, stage: Stage, receiver: HttpServer) -> SubscribedDestination:
        return SubscribedDestination(stage, receiver)
