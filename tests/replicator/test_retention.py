"""What is removed from the change stream, and what never is."""

from __future__ import annotations

from typing import Any

from pgsluice.replicator.retention import Retention
from pgsluice.shared.broker.bucket import StateBucket, worker_key
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.wire.lsn import format_lsn
from pgsluice.shared.wire.message import MessageHeaders
from tests.replicator.conftest import Group


def purge(replication: Group, retention_s: float, **applied: int) -> int:
    """How many messages are removed when the given workers have applied so much."""

    async def call(stream: ChangeStream, bucket: StateBucket) -> int:
        state = await stream.state()
        assert state is not None
        for worker, sequence in applied.items():
            record: dict[str, Any] = {"sequence": sequence, "stream_created": state.created}
            await bucket.put(worker_key(worker), record)
        return await Retention(stream, bucket, retention_s).purge()

    removed = replication.with_broker(call)
    assert isinstance(removed, int)
    return removed


def test_a_sequence_of_a_stream_that_counts_anew_removes_nothing_that_is_not_applied(replication: Group) -> None:
    """After the broker lost messages, which were published again in fewer: the worker has 4 of the old ones, 1 of these."""
    publish_messages(replication, 3)

    async def call(stream: ChangeStream, bucket: StateBucket) -> int:
        state, first = await stream.state(), await stream.message(1)
        assert state is not None
        assert first is not None
        applied = format_lsn(MessageHeaders.decode(first.headers).last.commit_lsn)
        await bucket.put(worker_key("w"), {"sequence": 4, "commit_lsn": applied, "stream_created": state.created})
        return await Retention(stream, bucket, 0).purge()

    assert replication.with_broker(call) == 0


def publish_messages(replication: Group, count: int) -> None:
    for number in range(count):
        replication.replicate()
        replication.source.execute(f"INSERT INTO t VALUES ({number}, 'v')")
    replication.replicate()
    assert replication.stream_state().messages == count


def test_nothing_is_removed_while_no_worker_is_registered(replication: Group) -> None:
    publish_messages(replication, 3)
    assert purge(replication, retention_s=0) == 0


def test_only_what_every_worker_applied_is_removed(replication: Group) -> None:
    publish_messages(replication, 4)
    assert purge(replication, retention_s=0, fast=4, slow=2) == 2
    assert replication.stream_state().first_sequence == 3
    assert purge(replication, retention_s=0) == 0


def test_the_last_settled_message_stays_and_the_next_start_resumes_from_it(replication: Group) -> None:
    publish_messages(replication, 3)
    assert purge(replication, retention_s=0, only=3) == 2
    replication.source.execute("INSERT INTO t VALUES (17, 'v')")
    replication.replicate()
    assert replication.audit().changes == 2


def test_messages_younger_than_the_retention_time_stay(replication: Group) -> None:
    publish_messages(replication, 3)
    assert purge(replication, retention_s=3600, only=3) == 0


def test_a_transaction_that_goes_on_is_not_cut_in_two(replication: Group) -> None:
    publish_messages(replication, 1)
    replication.source.execute("INSERT INTO t SELECT n, repeat('v', 1000) FROM generate_series(100, 1100) n")
    replication.replicate()
    assert replication.stream_state().last_sequence > 3
    assert purge(replication, retention_s=0, only=3) == 1
    assert replication.audit().is_settled


def test_a_worker_of_an_earlier_stream_holds_everything(replication: Group) -> None:
    publish_messages(replication, 3)

    async def register(_: ChangeStream, bucket: StateBucket) -> None:
        await bucket.put(worker_key("old"), {"sequence": 3, "stream_created": "another"})

    replication.with_broker(register)
    assert purge(replication, retention_s=0, only=3) == 0
