"""A run that ended anywhere is taken up after its last message: no row is missing, and none comes twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.replicator.pipelines import resumption as resumption_module
from pgsluice.replicator.pipelines.resumption import RunResumption
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.pipelines.run_records import RangeRecord, RunRecord, RunState
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders
from pgsluice.shared.wire.table import ReplicaIdentity, Table
from tests.replicator.pipelines.held_run import ROWS, gate, held_at, insert_wide_rows, keys_of, messages
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import wait_until


def kill_and_take_up(pipeline: PipelineUnderTest, nats: NatsServer, directory: Path, row: int) -> None:
    insert_wide_rows(pipeline)
    with held_at(pipeline, nats, directory, row) as process:
        pipeline.kill(process)
    assert pipeline.record().newest is not None
    again = pipeline.run()
    assert (again.number, again.attempt, again.state) == (1, 2, RunState.FINISHED)
    lines = pipeline.lines()
    assert len(lines) == again.rows_read == ROWS
    assert pipeline.merged() == pipeline.expected()
    assert pipeline.run().rows == 0


@pytest.mark.parametrize("row", [1, 22])
def test_a_killed_run_is_taken_up_after_its_last_message(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path, row: int
) -> None:
    kill_and_take_up(pipeline, nats_server, tmp_path, row)


@pytest.mark.long
@pytest.mark.parametrize("row", range(2, ROWS + 1))
def test_a_run_that_is_killed_at_any_message_is_taken_up(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path, row: int
) -> None:
    kill_and_take_up(pipeline, nats_server, tmp_path, row)


@pytest.mark.parametrize("more", [(), ("--full",)], ids=["incremental", "full"])
def test_a_run_whose_source_is_away_for_a_moment_takes_itself_up(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path, more: tuple[str, ...]
) -> None:
    insert_wide_rows(pipeline)
    process = PgsluiceProcess("run", "ratings", *more, config=keys_of(pipeline, nats_server, tmp_path))
    try:
        with gate(pipeline, 22):
            process.start()
            wait_until(lambda: messages(pipeline) >= 6, deadline_s=60.0, what="the rows before the gate", interval_s=0.1)
            ended = "SELECT bool_and(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgsluice'"
            assert pipeline.source.execute(f"{ended} AND datname = current_database()") == [(True,)]
            process.wait_for_log("the run ended early and is taken up")
        assert process.wait(60.0) == 0, process.log()
    finally:
        process.close()
    newest = pipeline.record().newest
    assert newest is not None
    assert (newest.number, newest.state) == (1, RunState.FINISHED)
    assert newest.attempt > 1
    assert len(pipeline.lines()) == ROWS
    assert pipeline.merged() == pipeline.expected()


@pytest.mark.parametrize(
    "kept",
    [
        "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory') AND state = 'idle'",
        "pid IN (SELECT pid FROM pg_locks WHERE relation = 't'::regclass) AND state = 'idle in transaction'",
    ],
    ids=["the pipeline", "the tables"],
)
def test_a_run_that_keeps_something_locked_no_more_ends_and_takes_itself_up(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path, kept: str
) -> None:
    """Another run would publish beside it; a table that is written anew would be empty for the rest of its ranges."""
    insert_wide_rows(pipeline)
    with held_at(pipeline, nats_server, tmp_path, 22) as process:
        ended = "SELECT bool_and(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgsluice'"
        assert pipeline.source.execute(f"{ended} AND datname = current_database() AND {kept}") == [(True,)]
        process.wait_for_log("the run ended early and is taken up")
        wait_until(lambda: pipeline.record().runs[0].attempt == 2, what="the run is taken up")
        with pytest.raises(TransientError, match="another run of pipeline"):
            pipeline.run()


def test_rows_that_change_while_they_are_read_come_once_as_they_were_and_then_as_they_are(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    """Rows that were read, and others that were not: the change moves them in the table, and to the end of the order."""
    plain = pipeline.pipeline.query
    insert_wide_rows(pipeline)
    held = pipeline.pipeline.query
    pipeline.change(query=plain)
    before = pipeline.expected()
    pipeline.change(query=held)
    keys = keys_of(pipeline, nats_server, tmp_path)
    with gate(pipeline, 22) as open_gate, PgsluiceProcess("run", "ratings", config=keys) as process:
        wait_until(lambda: messages(pipeline) >= 6, deadline_s=60.0, what="the rows before the gate", interval_s=0.1)
        pipeline.source.execute("UPDATE t SET v = 'new', updated_at = now() WHERE id % 3 = 0; DELETE FROM t WHERE id = 38")
        open_gate()
        assert process.wait(60.0) == 0, process.log()
    assert len(pipeline.lines()) == ROWS
    assert pipeline.merged() == before
    pipeline.run()
    assert pipeline.merged() == pipeline.expected() | {b"38": before[b"38"]}


def test_rows_that_change_between_kill_and_next_run_come_with_what_they_are_then(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    insert_wide_rows(pipeline)
    with held_at(pipeline, nats_server, tmp_path, 22) as process:
        pipeline.kill(process)
    pipeline.source.execute("UPDATE t SET v = 'new', updated_at = now() WHERE id IN (3, 30)")
    pipeline.run()
    pipeline.run()
    assert pipeline.merged() == pipeline.expected()


TABLE = Table(7, "public", "copied", ReplicaIdentity.NOTHING, ())


def numbered(number: int) -> SnapshotHeaders:
    return SnapshotHeaders("s", TABLE.oid, 1, 1, number, 1, number, number, is_range_end=False, last_key=f'["{number}"]')


async def test_a_task_of_the_earlier_run_stores_nothing_after_its_range_was_taken_up(nats_server: NatsServer, group: str) -> None:
    names = GroupNames(group)
    async with connected(nats_server.settings(), "test") as client:
        stream = SnapshotStream(client, names)
        await stream.ensure(StreamSettings(1, (), 1 << 20, "none", 60.0))
        task = RangePublisher(client, stream, names.snapshot_range_subject("s", TABLE.oid, 1), f"1/s/{TABLE.oid}/1/")
        try:
            await task.publish(numbered(1), b"")
            await task.flush()
            left = RunRecord(1, RunState.READING, is_full=True, started_at="", ranges=(RangeRecord(1, (), ("9",)),))
            resumption = RunResumption(client, names, "1", TABLE)
            after = await resumption.ranges_left("s", left)
            assert after == [RangeRecord(1, ("1",), ("9",))]
            await task.publish(numbered(2), b"")
            await task.publish(numbered(3), b"")
            with pytest.raises(TransientError, match="ended by another run"):
                await task.flush()
        finally:
            await task.close()
        state = await stream.state()
        assert state is not None
        assert state.messages == 2
        assert await resumption.ranges_left("s", left) == after  # should the second run be interrupted here
        whole = replace(left, ranges=(RangeRecord(1, (), ("1",)),))
        assert await resumption.ranges_left("s", whole) == []


async def test_what_a_task_stores_while_its_range_is_ended_is_not_read_again(
    nats_server: NatsServer, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = GroupNames(group)
    async with connected(nats_server.settings(), "test") as client:
        stream = SnapshotStream(client, names)
        await stream.ensure(StreamSettings(1, (), 1 << 20, "none", 60.0))
        task = RangePublisher(client, stream, names.snapshot_range_subject("s", TABLE.oid, 1), f"1/s/{TABLE.oid}/1/")

        class SlowPublisher(RangePublisher):
            """Behind whose look the task stores its second message."""

            async def publish(self, headers: SnapshotHeaders, data: bytes) -> None:
                await task.publish(numbered(2), b"")
                await task.flush()
                await super().publish(headers, data)

        monkeypatch.setattr(resumption_module, "RangePublisher", SlowPublisher)
        try:
            await task.publish(numbered(1), b"")
            await task.flush()
            left = RunRecord(1, RunState.READING, is_full=True, started_at="", ranges=(RangeRecord(1, (), ("9",)),))
            assert await RunResumption(client, names, "1", TABLE).ranges_left("s", left) == [RangeRecord(1, ("2",), ("9",))]
        finally:
            await task.close()


async def test_a_range_of_which_nothing_is_stored_is_left_as_it_was(nats_server: NatsServer, group: str) -> None:
    names = GroupNames(group)
    async with connected(nats_server.settings(), "test") as client:
        await SnapshotStream(client, names).ensure(StreamSettings(1, (), 1 << 20, "none", 60.0))
        second = RangeRecord(2, ("9",), ("20",))
        run = RunRecord(1, RunState.READING, is_full=True, started_at="", ranges=(second,))
        assert await RunResumption(client, names, "1", TABLE).ranges_left("s", run) == [second]
