"""A run reads what is wanted, once and whole, and its checkpoint is where it ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgsluice.replicator.pipelines.pipeline import RunMode, WriteMode
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.config.placement_settings import PlacementSettings
from pgsluice.shared.errors import TerminalError, TransientError, UsageError
from pgsluice.shared.pipelines.run_records import RunState
from pgsluice.shared.wire.names import GroupNames
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.servers import NatsServer


def insert(pipeline: PipelineUnderTest, first: int, last: int, at: str = "now()") -> None:
    pipeline.source.execute(f"INSERT INTO t SELECT n, 'v' || n, {at} FROM generate_series({first}, {last}) n")


def test_a_first_run_reads_every_row_and_the_next_one_only_newer_ones(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 1000, "now() - interval '1 hour'")
    assert pipeline.run().rows == 1000
    assert pipeline.merged() == pipeline.expected()
    insert(pipeline, 1001, 1010)
    second = pipeline.run()
    assert (second.state, second.rows, second.rows_read, second.is_full) == (RunState.FINISHED, 10, 10, False)
    assert min(second.plan_s, second.read_s) > 0.0
    assert pipeline.merged() == pipeline.expected()


def test_a_run_reads_nothing_where_its_rows_may_not_be(pipeline: PipelineUnderTest, nats_server: NatsServer) -> None:
    pipeline.settings = replace(pipeline.settings, placement=PlacementSettings("azure-c", ("aws-a", "gcp-b")))
    for begin in (pipeline.run, pipeline.plan):
        with pytest.raises(TerminalError, match="DomainUnavailable: this process is in domain 'azure-c'"):
            begin()

    async def exists() -> bool:
        async with connected(nats_server.settings(), "test") as client:
            return await StateBucket(client, GroupNames(pipeline.pipeline.group)).exists()

    assert not asyncio.run(exists())


def test_the_next_run_notes_when_workers_had_applied_the_one_before(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 10, "now() - interval '1 hour'")
    first = pipeline.run()
    applied_at = (datetime.now(UTC) + timedelta(seconds=7)).isoformat()
    report = WorkerReport(0, first.last_sequence, copied_at=applied_at)
    pipeline.asked(lambda bucket: bucket.put(worker_key("lake"), report))
    insert(pipeline, 11, 20)
    pipeline.run()
    pipeline.run()
    noted = pipeline.record().runs
    assert [run.applied_at for run in noted] == [applied_at, "", ""]
    assert noted[0].state is RunState.FINISHED
    assert pipeline.record().rows.read == sum(run.rows_read for run in noted) > 20
    assert pipeline.merged() == pipeline.expected()


def test_an_updated_row_comes_again(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 10, "now() - interval '1 hour'")
    pipeline.run()
    pipeline.source.execute("UPDATE t SET v = 'new', updated_at = now() WHERE id = 3")
    assert pipeline.run().rows == 1
    assert pipeline.merged() == pipeline.expected()


async def delete_stream(pipeline: PipelineUnderTest) -> None:
    async with connected(pipeline.settings.nats, "test") as client:
        await SnapshotStream(client, GroupNames(pipeline.pipeline.group)).delete()


def test_a_stream_that_was_made_anew_between_two_runs_is_told(pipeline: PipelineUnderTest) -> None:
    pipeline.source.execute("INSERT INTO t VALUES (1, 'a', now() - interval '1 hour')")
    pipeline.run()
    asyncio.run(delete_stream(pipeline))
    pipeline.source.execute("INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(TerminalError, match="was created again since the pipeline ran last"):
        pipeline.run()


def test_a_run_without_new_rows_keeps_the_checkpoint_and_publishes_nothing(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 10, "now() - interval '1 hour'")
    first = pipeline.run()
    checkpoint = pipeline.record().checkpoint
    assert checkpoint != ()
    second = pipeline.run()
    assert (second.rows, second.last_sequence) == (0, first.last_sequence)
    assert pipeline.record().checkpoint == checkpoint


def test_a_checkpoint_does_not_go_back_when_its_row_is_deleted(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 10, "now() - interval '1 hour' + n * interval '1 s'")
    pipeline.run()
    checkpoint = pipeline.record().checkpoint
    pipeline.source.execute("DELETE FROM t WHERE id > 5")
    pipeline.run()
    assert pipeline.record().checkpoint == checkpoint


def test_fifty_thousand_rows_of_one_time_are_read_once_each(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 50_000, "timestamptz '2026-01-01 00:00:00'")
    pipeline.change(batch_rows=50_000)
    pipeline.run()
    insert(pipeline, 50_001, 50_003, "timestamptz '2026-01-01 00:00:00'")
    assert pipeline.run().rows == 3
    lines = pipeline.lines()
    assert len(lines) == len(set(lines)) == 50_003


def test_a_full_run_reads_all_rows_again(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 100, "now() - interval '1 hour'")
    pipeline.run()
    assert pipeline.run(full=True).rows == 100
    assert len(pipeline.lines()) == 200


def test_a_pipeline_in_full_mode_reads_all_rows_each_time(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 20)
    pipeline.change(mode=RunMode.FULL, incremental_key="")
    assert [pipeline.run().rows, pipeline.run().rows] == [20, 20]


def test_an_empty_first_run_tells_workers_of_the_table(pipeline: PipelineUnderTest) -> None:
    assert pipeline.run().rows == 0
    [begin] = pipeline.bodies()
    assert (begin.headers.is_begin, begin.headers.run) == (True, 1)


def test_rows_are_appended_only_when_none_can_come_before_them(pipeline: PipelineUnderTest) -> None:
    pipeline.change(write=WriteMode.APPEND)
    insert(pipeline, 1, 10, "now() - interval '1 hour'")
    with pipeline.source.connect(autocommit=False) as late:
        late.execute("INSERT INTO t VALUES (11, 'late')")
        insert(pipeline, 12, 12)
        assert pipeline.run().rows == 10
        late.commit()
    assert len(pipeline.lines()) == 10


@pytest.mark.parametrize("kind", ["bpchar", '"bit"'])
def test_a_key_of_no_declared_length_is_compared_whole(pipeline: PipelineUnderTest, kind: str) -> None:
    pipeline.source.execute("INSERT INTO t SELECT n, n::bit(6)::text FROM generate_series(1, 50) n")
    pipeline.change(query=f"SELECT v::{kind} AS code, id FROM t", mode=RunMode.FULL, incremental_key="")
    pipeline.change(key=("code",), batch_rows=7, tasks=1)
    assert pipeline.run().rows_read == 50
    assert pipeline.merged() == pipeline.expected()
    assert {column for _, column in pipeline.plan().columns} == {kind, "bigint"}


@pytest.mark.parametrize(
    ("kind", "last"), [("timestamp", "infinity"), ("date", "infinity"), ("float8", "NaN"), ("numeric", "NaN")]
)
def test_a_row_that_no_row_could_come_after_is_refused(pipeline: PipelineUnderTest, kind: str, last: str) -> None:
    first = "2026-01-31" if last == "infinity" else "1"
    pipeline.change(query=f"SELECT id, v::{kind} AS v FROM t", incremental_key="v", overlap="0")
    pipeline.source.execute(f"INSERT INTO t VALUES (1, '{first}'), (2, '{last}')")
    with pytest.raises(TerminalError, match=f"'v' .*{last}"):
        pipeline.run()
    pipeline.source.execute("DELETE FROM t WHERE id = 2")
    assert pipeline.run().rows == 1
    pipeline.source.execute(f"INSERT INTO t VALUES (3, '{last}')")
    with pytest.raises(TerminalError, match=f"'v' .*{last}"):
        pipeline.run()
    assert pipeline.record().checkpoint[1:] == ("1",)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT id, v, updated_at FROM t; DROP TABLE t", "syntax error|multiple commands"),
        ("SELECT id, v, updated_at FROM t) AS q; DROP TABLE t; SELECT * FROM (SELECT 1", "multiple commands"),
        ("DELETE FROM t RETURNING id, v, updated_at", "syntax error"),
        ("WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone", "data-modifying|read-only"),
        ("SELECT nextval('s') AS id, now() AS updated_at", "read-only"),
        ("SELECT id, v FROM t", "no column updated_at"),
        ("SELECT id, id, updated_at FROM t", "no distinct name"),
        ("SELECT id, updated_at FROM nowhere", "does not exist"),
    ],
)
def test_what_is_no_query_that_only_reads_is_refused(pipeline: PipelineUnderTest, query: str, said: str) -> None:
    insert(pipeline, 1, 1)
    pipeline.source.execute("CREATE SEQUENCE s")
    pipeline.change(query=query)
    with pytest.raises(UsageError, match=said):
        pipeline.run()
    assert pipeline.source.execute("SELECT count(*) FROM t") == [(1,)]


def test_a_row_without_a_place_in_the_order_is_refused_or_left_out(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 5)
    pipeline.source.execute("UPDATE t SET updated_at = NULL WHERE id = 2")
    with pytest.raises(TerminalError, match="without a value in updated_at, id"):
        pipeline.run()
    pipeline.change(skips_nulls=True)
    assert pipeline.run().rows == 4


def test_an_incremental_run_refuses_a_row_without_a_place_in_the_order(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 5)
    pipeline.run()
    pipeline.source.execute("INSERT INTO t (id, updated_at) VALUES (6, NULL)")
    with pytest.raises(TerminalError, match="without a value in updated_at, id"):
        pipeline.run()


def test_batches_of_no_chosen_size_bring_all_rows(pipeline: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.replicator.pipelines.pipeline.SMALLEST_BATCH_ROWS", 10)
    insert(pipeline, 1, 25, "now() - interval '1 hour'")
    pipeline.change(batch_rows=0, tasks=1)
    assert pipeline.plan().ranges == 1
    pipeline.run()
    assert pipeline.merged() == pipeline.expected()
    insert(pipeline, 26, 26)
    assert pipeline.run().after == pipeline.record().runs[0].last


def test_a_run_says_that_another_one_reads(pipeline: PipelineUnderTest) -> None:
    with pipeline.source.connect() as other:
        key = f"pgsluice copy of group {pipeline.pipeline.group}"
        other.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [key])
        with pytest.raises(TransientError, match="another run of pipeline 'ratings' reads"):
            pipeline.run()


def test_rows_that_the_key_does_not_tell_apart_are_refused(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 5)
    pipeline.change(query="SELECT 1 AS id, updated_at FROM t")
    with pytest.raises(TerminalError, match=r"several rows with the same (updated_at, )?id"):
        pipeline.run()


def test_rows_of_different_times_that_the_key_does_not_tell_apart_are_refused(pipeline: PipelineUnderTest) -> None:
    """The target has a place for one of them."""
    insert(pipeline, 1, 10, "now() - interval '1 hour'")
    pipeline.change(query="SELECT id / 2 AS half, id, updated_at + id * interval '1 s' AS updated_at FROM t", key=("half",))
    for id_key in ((), ("id",)):
        pipeline.change(id_key=id_key)
        with pytest.raises(TerminalError, match="several rows with the same half: name columns in key"):
            pipeline.run()
    pipeline.change(write=WriteMode.APPEND)
    assert pipeline.run().rows == 10


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("float8", "-0", "0"),
        ("float8", "NaN", "NaN"),
        ("numeric", "1.0", "1.00"),
        ("bpchar", "a", "a "),
        ("date", "infinity", "infinity"),
    ],
)
def test_keys_that_are_equal_for_their_type_are_the_same(pipeline: PipelineUnderTest, kind: str, one: str, other: str) -> None:
    pipeline.source.execute(f"INSERT INTO t VALUES (1, '{one}'), (2, '{other}')")
    pipeline.change(
        query=f"SELECT v::{kind} AS v, 1 AS part, id FROM t", mode=RunMode.FULL, incremental_key="", key=("part", "v")
    )
    with pytest.raises(TerminalError, match="several rows with the same part, v"):
        pipeline.run()


def test_another_query_asks_for_a_full_run(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 5)
    pipeline.run()
    pipeline.change(query="SELECT id, upper(v) AS v, updated_at FROM t")
    with pytest.raises(UsageError, match="has changed since its last run"):
        pipeline.run()
    assert pipeline.run(full=True).rows == 5
    assert pipeline.merged() == pipeline.expected()


def test_a_dry_run_writes_nothing(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 25, "now() - interval '1 hour'")
    pipeline.change(batch_rows=10)
    planned = pipeline.plan()
    assert (planned.is_full, planned.rows, planned.ranges) == (True, 25, 3)
    assert planned.columns == (("id", "bigint"), ("v", "text"), ("updated_at", "timestamp with time zone"))
    pipeline.change(batch_rows=100)
    assert pipeline.run().number == 1
    assert pipeline.plan().rows == 0


@pytest.mark.parametrize(("given", "used"), [("1MB", b"64MB"), ("96MB", b"96MB")])
def test_joins_have_the_memory_that_they_need_or_more_where_the_server_gives_it(
    pipeline: PipelineUnderTest, given: str, used: bytes
) -> None:
    pipeline.source.execute(f"ALTER DATABASE {pipeline.source.dbname} SET work_mem = '{given}'; INSERT INTO t VALUES (1, 'v')")
    pipeline.change(query="SELECT id, current_setting('work_mem') AS v, updated_at FROM t")
    pipeline.run()
    assert [line.split(b"\t")[1] for line in pipeline.lines()] == [used]


def test_a_statement_that_takes_too_long_fails_the_run(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 3)
    pipeline.change(
        query="SELECT id, pg_sleep(30)::text AS v, updated_at FROM t", statement_timeout_s=0.2, skips_nulls=True, retries=0
    )
    with pytest.raises((TerminalError, Exception), match="statement-timeout"):
        pipeline.run()
