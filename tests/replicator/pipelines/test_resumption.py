"""A run that ended anywhere is taken up after its last message: no row is missing, and none comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.replicator.pipelines.resumption import Resumption
from pgsluice.replicator.pipelines.run_records import RangeRecord, RunRecord, RunState
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders
from pgsluice.shared.wire.table import ReplicaIdentity, Table
from tests.end_to_end.group_under_test import configuration
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import wait_until

ROWS = 40
ROW_BYTES = 70_000  # four rows make a message
GATE_LOCK = 42
QUERY = "SELECT id, CASE WHEN id = (SELECT closed_at FROM gate) THEN pass_gate() || v ELSE v END AS v, updated_at FROM t"


@contextmanager
def gate(pipeline: PipelineUnderTest, row: int) -> Iterator[None]:
    """Whoever reads that row waits."""
    # A volatile function would be called wherever the query is looked at, and any function for all rows before they are sorted.
    pipeline.source.execute(
        f"CREATE INDEX ON t (updated_at, id); ALTER DATABASE {pipeline.source.dbname} SET enable_sort = off;"
        f"ALTER DATABASE {pipeline.source.dbname} SET enable_seqscan = off;"
        f"CREATE TABLE gate (closed_at int); INSERT INTO gate VALUES ({row});"
        "CREATE FUNCTION pass_gate() RETURNS text LANGUAGE plpgsql STABLE AS"
        f" $$BEGIN PERFORM pg_advisory_xact_lock_shared({GATE_LOCK}); RETURN ''; END$$"
    )
    with pipeline.source.connect() as holder:
        holder.execute(f"SELECT pg_advisory_lock({GATE_LOCK})")
        yield


def kill_at(pipeline: PipelineUnderTest, nats: NatsServer, directory: Path, row: int) -> None:
    """A real run, killed when it has stored what comes before the row."""
    file = directory / "pipelines.yaml"
    file.write_text(
        f'pipelines:\n  ratings:\n    group: {pipeline.pipeline.group}\n    query: "{pipeline.pipeline.query}"\n'
        "    target: public.copied\n    key: [id]\n    mode: incremental\n    incremental-key: updated_at\n"
    )
    keys = configuration(pipeline.pipeline.group, pipeline.source, None, nats, **{"pipelines-config": str(file)})
    stored = 1 + (row - 1) // 4
    with gate(pipeline, row), PgsluiceProcess("run", "ratings", config=keys) as process:
        wait_until(lambda: not process.is_running or messages(pipeline) >= stored, deadline_s=60.0, what="rows", interval_s=0.1)
        assert process.is_running, process.log()
        process.kill()


def messages(pipeline: PipelineUnderTest) -> int:
    try:
        return len(pipeline.bodies())
    except AssertionError:  # there is no stream yet
        return 0


def kill_and_take_up(pipeline: PipelineUnderTest, nats: NatsServer, directory: Path, row: int) -> None:
    pipeline.source.execute(
        f"INSERT INTO t SELECT n, repeat('x', {ROW_BYTES}), now() - interval '1 hour' + n * interval '1 s'"
        f" FROM generate_series(1, {ROWS}) n"
    )
    pipeline.change(query=QUERY)
    kill_at(pipeline, nats, directory, row)
    assert pipeline.record().newest is not None
    again = pipeline.run()
    assert (again.number, again.attempt, again.state) == (1, 2, RunState.FINISHED)
    lines = pipeline.lines()
    assert len(lines) == ROWS
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


def test_rows_that_change_between_kill_and_next_run_come_with_what_they_are_then(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    pipeline.source.execute(
        f"INSERT INTO t SELECT n, repeat('x', {ROW_BYTES}), now() - interval '1 hour' + n * interval '1 s'"
        f" FROM generate_series(1, {ROWS}) n"
    )
    pipeline.change(query=QUERY)
    kill_at(pipeline, nats_server, tmp_path, 22)
    pipeline.source.execute("UPDATE t SET v = 'new', updated_at = now() WHERE id IN (3, 30)")
    pipeline.run()
    pipeline.run()
    assert pipeline.merged() == pipeline.expected()


TABLE = Table(7, "public", "copied", ReplicaIdentity.NOTHING, ())


def headers(number: int) -> SnapshotHeaders:
    return SnapshotHeaders("s", TABLE.oid, 1, 1, number, 1, number, number, is_range_end=False, last_key=f'["{number}"]')


async def test_a_task_of_the_earlier_run_stores_nothing_after_its_range_was_taken_up(nats_server: NatsServer, group: str) -> None:
    names = GroupNames(group)
    async with connected(nats_server.settings(), "test") as client:
        stream = SnapshotStream(client, names)
        await stream.ensure(StreamSettings(1, (), 1 << 20, "none", 60.0))
        task = RangePublisher(client, stream, names.snapshot_range_subject("s", TABLE.oid, 1), f"1/s/{TABLE.oid}/1/")
        try:
            await task.publish(headers(1), b"")
            await task.flush()
            left = RunRecord(1, RunState.READING, is_full=True, started_at="", ranges=(RangeRecord(1, (), ("9",)),))
            resumption = Resumption(client, names, "1", TABLE)
            after = await resumption.ranges_left("s", left)
            assert after == [RangeRecord(1, ("1",), ("9",))]
            await task.publish(headers(2), b"")
            await task.publish(headers(3), b"")
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
