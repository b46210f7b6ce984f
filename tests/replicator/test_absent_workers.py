"""The warning of a worker that holds messages and is not there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pgsluice.replicator.retention import AbsentWorkers
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import worker_key
from tests.replicated_group import Group


def warned_of(replication: Group, silence_s: float, **applied: int) -> list[list[str]]:
    """The names of two checks in a row, of workers that reported an hour ago."""

    async def check(stream: ChangeStream, bucket: StateBucket) -> list[list[str]]:
        state = await stream.state()
        assert state is not None
        for worker, sequence in applied.items():
            reported_at = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
            record = {"sequence": sequence, "stream_created": state.created, "updated_at": reported_at}
            await bucket.put(worker_key(worker), record)
        absent = AbsentWorkers(stream, bucket, silence_s)
        return [await absent.check(), await absent.check()]

    found = replication.with_broker(check)
    assert isinstance(found, list)
    return found


def test_a_worker_for_which_old_messages_wait_is_named_once_an_interval(replication: Group) -> None:
    for number in range(2):
        replication.replicate()
        replication.source.execute(f"INSERT INTO t VALUES ({number}, 'v')")
    replication.replicate()
    assert warned_of(replication, 7200, gone=1, done=2) == [[], []]
    assert warned_of(replication, 1800, gone=1, done=2) == [[], []], "the message that waits is young"
    assert warned_of(replication, 0, gone=1, done=2) == [["gone"], []]
