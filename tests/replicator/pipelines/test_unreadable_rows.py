"""A row that the query fails on is a dead letter, told by its key alone; all others arrive, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.console.dead import LetterSelection, ask_for_replay, blocking, remove_letters
from pgsluice.replicator.pipelines import run_ranges
from pgsluice.replicator.pipelines.pipeline import WriteMode
from pgsluice.replicator.snapshot.copy_task import copy_failure
from pgsluice.replicator.snapshot.copy_task_messages import RangeStatus
from pgsluice.replicator.snapshot.dead_rows import RowLetters
from pgsluice.replicator.snapshot.plan import PageRange
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunState, store_pipeline
from pgsluice.shared.wire.dead_letter import RUNS
from tests.replicator.pipelines.held_run import keys_of
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.replicator.pipelines.steps.test_dead_rows import EVERY, at_letters, letters
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import wait_until

SECRET = "s3cret"
SOURCE = PageRange(1, 1, "pipeline 'ratings'", 0, 0, 1, "SELECT", "COPY")


def insert(pipeline: PipelineUnderTest, rows: int, *bad: int) -> None:
    """Rows that the query casts, of which it fails on some."""
    pipeline.source.execute(
        f"INSERT INTO t SELECT n, CASE WHEN n = ANY(ARRAY{list(bad)}::bigint[]) THEN '{SECRET}' ELSE n::text END,"
        f" timestamptz '2026-01-01' + n / 3 * interval '1 s' FROM generate_series(1, {rows}) n"
    )
    pipeline.change(query="SELECT id, v::int AS v, updated_at FROM t")


def mend(pipeline: PipelineUnderTest, more: str = "") -> None:
    """The rows can be read, and look no newer."""
    pipeline.source.execute(f"UPDATE t SET v = id::text WHERE v = '{SECRET}' {more}")


def ids(pipeline: PipelineUnderTest) -> list[int]:
    """As often as they are in the stream."""
    return sorted(int(line.split(b"\t")[0]) for line in pipeline.lines())


def without(rows: int, *bad: int) -> list[int]:
    return [n for n in range(1, rows + 1) if n not in bad]


def dead_ids(pipeline: PipelineUnderTest) -> list[int]:
    return sorted(int(stored.letter.row.split('"')[3]) for stored in letters(pipeline))


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_row_that_the_query_fails_on_is_a_letter_and_all_others_arrive(pipeline: PipelineUnderTest, tasks: int) -> None:
    insert(pipeline, 1000, 333)
    pipeline.change(batch_rows=250, tasks=tasks)
    ended = pipeline.run()
    assert (ended.state, ended.rows, ended.rows_read, ended.dead) == (RunState.FINISHED, 1000, 999, 1)
    assert ids(pipeline) == without(1000, 333)
    [stored] = letters(pipeline)
    [listed] = blocking([stored])
    assert (listed.worker, listed.table, listed.state) == (RUNS, "pipeline 'ratings'", "dead")
    assert listed.reason == "the query of pipeline 'ratings' failed (SQLSTATE 22P02)"
    assert SECRET not in repr(stored) + repr(listed)
    assert stored.letter.row == '["2026-01-01 00:01:51+00", "333"]'
    assert pipeline.run().rows == 0
    assert ids(pipeline) == without(1000, 333)


def test_one_row_of_a_hundred_thousand_is_all_that_is_missing(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 100_000, 77_777)
    assert pipeline.run().dead == 1
    assert ids(pipeline) == without(100_000, 77_777)


def test_several_rows_wherever_they_are(pipeline: PipelineUnderTest) -> None:
    bad = (1, 2, 3, 100, 101, 250, 251, 499, 500)
    insert(pipeline, 500, *bad)
    pipeline.change(batch_rows=250)
    assert pipeline.run().dead == len(bad)
    assert ids(pipeline) == without(500, *bad)
    assert dead_ids(pipeline) == list(bad)


def test_a_replay_has_the_next_run_read_the_row_and_its_letter_goes_then(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 100, 3, 50)
    pipeline.run()
    mend(pipeline, "AND id = 3")
    assert pipeline.run().rows == 0  # nobody has asked yet
    at_letters(pipeline, lambda stream: ask_for_replay(stream, EVERY))
    again = pipeline.run()
    assert (again.rows, again.rows_read, again.dead) == (2, 1, 1)
    assert ids(pipeline) == without(100, 50)
    [stored] = letters(pipeline)
    assert (stored.is_queued, stored.letter.attempts) == (False, 2)
    mend(pipeline)
    at_letters(pipeline, lambda stream: ask_for_replay(stream, EVERY))
    pipeline.run()
    assert (ids(pipeline), letters(pipeline)) == (without(100), [])


def test_a_replayed_row_that_the_next_run_reads_anyhow_is_read_once(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 100, 3, 99)
    pipeline.change(query="SELECT id, v::int AS v, updated_at::timestamp AS updated_at FROM t", overlap="10 seconds")
    pipeline.run()
    mend(pipeline)
    at_letters(pipeline, lambda stream: ask_for_replay(stream, EVERY))
    before = len(pipeline.lines())
    again = pipeline.run()
    read = [int(line.split(b"\t")[0]) for line in pipeline.lines()[before:]]
    assert 99 in read
    assert (sorted(set(read)), again.rows_read) == (sorted(read), len(read))
    assert (pipeline.merged(), letters(pipeline)) == (pipeline.expected(), [])


def test_what_is_discarded_is_not_read_again(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 100, 3, 50)
    pipeline.run()
    chosen = LetterSelection("", (str(letters(pipeline)[0].letter.position),), every=False)
    at_letters(pipeline, lambda stream: remove_letters(stream, chosen))
    mend(pipeline)
    assert pipeline.run().rows == 0
    assert len(letters(pipeline)) == 1


def test_an_incremental_run_sets_rows_aside_too(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 30)
    pipeline.run()
    pipeline.source.execute(f"INSERT INTO t VALUES (31, '{SECRET}')")
    ended = pipeline.run()
    assert (ended.is_full, ended.rows, ended.rows_read, ended.dead) == (False, 1, 0, 1)
    pipeline.source.execute("INSERT INTO t VALUES (32, '32')")
    pipeline.run()
    assert ids(pipeline) == without(32, 31)


def test_a_full_run_ends_letters_of_rows_that_it_could_read(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 30, 3, 4)
    pipeline.run()
    mend(pipeline, "AND id = 3")
    assert pipeline.run(full=True).dead == 1
    assert dead_ids(pipeline) == [4]


def test_more_rows_than_may_be_dead_fail_the_run_and_the_next_one_goes_on(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 200, 10, 90, 150)
    pipeline.change(max_dead_letters=2)
    with pytest.raises(
        TerminalError, match=r"more than 2 rows that cannot be processed; the last one: the query of .* 22P02"
    ) as raised:
        pipeline.run()
    assert SECRET not in str(raised.value)
    assert letters(pipeline) == []  # that they are too many is known before each is found
    assert pipeline.record().runs[0].state is RunState.FAILED
    mend(pipeline)
    ended = pipeline.run()
    assert (ended.number, ended.attempt, ended.state) == (1, 2, RunState.FINISHED)
    assert (ids(pipeline), ended.rows_read) == (without(200), 200)


def test_what_a_failed_run_has_stored_stays_until_that_is_taken_up(pipeline: PipelineUnderTest) -> None:
    """Its newest messages say how far it came, though all workers have applied them."""
    insert(pipeline, 1000, 700)
    pipeline.change(max_dead_letters=0, batch_rows=250, retries=0)
    pipeline.settings = replace(pipeline.settings, stream=replace(pipeline.settings.stream, retention_s=0.0))
    with pytest.raises(TerminalError):
        pipeline.run()
    stored = [body.sequence for body in pipeline.bodies()]
    assert len(ids(pipeline)) >= 250
    applied = WorkerReport(0, stored[-1])
    pipeline.asked(lambda bucket: bucket.put(worker_key("lake"), applied))
    mend(pipeline)
    pipeline.run()
    assert [body.sequence for body in pipeline.bodies()][: len(stored)] == stored
    assert ids(pipeline) == without(1000)


def test_letters_that_are_there_count_towards_the_limit(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 20, 3, 4)
    pipeline.change(max_dead_letters=2)
    assert pipeline.run().dead == 2
    pipeline.source.execute(f"INSERT INTO t VALUES (21, '{SECRET}')")
    with pytest.raises(TerminalError, match="more than 2 rows that cannot be processed"):
        pipeline.run()
    at_letters(pipeline, lambda stream: remove_letters(stream, EVERY))
    assert pipeline.run().dead == 1


def test_none_is_set_aside_where_none_may_be(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 20, 7)
    pipeline.change(max_dead_letters=0)
    with pytest.raises(TerminalError, match="correct the query"):
        pipeline.run()
    assert letters(pipeline) == []


def test_a_query_that_fails_on_every_row_fails_the_run(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 5000)
    pipeline.source.execute(f"UPDATE t SET v = '{SECRET}'")
    with pytest.raises(TerminalError, match=r"SQLSTATE 22P02.*correct the query"):
        pipeline.run()
    assert letters(pipeline) == []


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("SELECT id, sum(1) / nullif(id, 7) / (id - 13) AS v, updated_at FROM t GROUP BY id", "22012"),
        ("SELECT id, fails(id, 'XX001') AS v, updated_at FROM t", "XX001"),
        ("SELECT id, (CASE id WHEN 13 THEN -1 ELSE 1 END)::positive AS v, updated_at FROM t", "23514"),
    ],
)
def test_whatever_is_wrong_with_the_row(pipeline: PipelineUnderTest, query: str, state: str) -> None:
    pipeline.source.execute(
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
        "CREATE FUNCTION fails(id bigint, state text) RETURNS int LANGUAGE plpgsql STABLE AS"
        " $$BEGIN IF id = 13 THEN RAISE 'not so' USING ERRCODE = state; END IF; RETURN 1; END$$"
    )
    insert(pipeline, 100)
    pipeline.change(query=query)
    assert pipeline.run().dead == 1
    [stored] = letters(pipeline)
    assert state in stored.letter.reason
    assert ids(pipeline) == without(100, 13)


def test_where_no_key_is_known_the_run_fails(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 100)
    pipeline.change(query="SELECT id, updated_at FROM t WHERE 1 / (id - 13) < 2")
    with pytest.raises(TerminalError, match=r"SQLSTATE 22012.*an expression of the query fails on a row; correct it"):
        pipeline.run()


@pytest.mark.parametrize("rows", [20, 100])
def test_where_each_range_works_out_all_rows_the_run_fails(pipeline: PipelineUnderTest, rows: int) -> None:
    insert(pipeline, rows)
    pipeline.change(query="SELECT id, rank() OVER (ORDER BY id) / (id - 13) AS v, updated_at FROM t")
    with pytest.raises(TerminalError, match=r"SQLSTATE 22012.*correct the query"):
        pipeline.run()
    assert pipeline.lines() == []


def slow(pipeline: PipelineUnderTest, *rows: int) -> None:
    pipeline.source.execute(
        "CREATE FUNCTION slow(id bigint) RETURNS int LANGUAGE plpgsql STABLE AS $$BEGIN"
        f" IF id = ANY(ARRAY{list(rows)}::bigint[]) THEN PERFORM pg_sleep(30); END IF; RETURN 1; END$$"
    )
    pipeline.change(query="SELECT id, slow(id) AS v, updated_at FROM t", statement_timeout_s=0.3, retries=0)


def test_a_row_that_takes_too_long_is_set_aside(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 100)
    slow(pipeline, 13)
    assert pipeline.run().dead == 1
    assert ids(pipeline) == without(100, 13)
    assert "SQLSTATE 57014" in letters(pipeline)[0].letter.reason


def test_a_source_that_takes_too_long_for_all_rows_fails_the_run(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 200)
    slow(pipeline, *range(1, 201))
    with pytest.raises(TerminalError, match="raise statement-timeout"):
        pipeline.run()
    assert letters(pipeline) == []


def insert_wide(pipeline: PipelineUnderTest, *bad: int) -> None:
    """Forty rows of which four make a message, read in the order of an index: so a range is stored in part before it fails."""
    pipeline.source.execute(
        "INSERT INTO t SELECT n, repeat('x', 70000), timestamptz '2026-01-01' + n * interval '1 s' FROM generate_series(1, 40) n;"
        f"CREATE TABLE bad AS SELECT unnest(ARRAY{list(bad)}::bigint[]) AS id;"
        f"CREATE INDEX ON t (updated_at, id); ALTER DATABASE {pipeline.source.dbname} SET enable_sort = off;"
        f"ALTER DATABASE {pipeline.source.dbname} SET enable_seqscan = off"
    )
    query = "SELECT id, CASE WHEN id IN (SELECT id FROM bad) THEN (1 / (id - id))::text ELSE v END AS v, updated_at FROM t"
    pipeline.change(query=query, write=WriteMode.APPEND)


def test_rows_that_were_stored_before_come_no_second_time(pipeline: PipelineUnderTest) -> None:
    insert_wide(pipeline, 10, 22, 23, 40)
    ended = pipeline.run()
    assert (ended.dead, ended.rows_read) == (4, 36)
    assert ids(pipeline) == without(40, 10, 22, 23, 40)


@pytest.mark.parametrize(
    ("sqlstate", "status"),
    [
        ("22012", RangeStatus.UNREADABLE),
        ("23514", RangeStatus.UNREADABLE),
        ("XX001", RangeStatus.UNREADABLE),
        ("XX002", RangeStatus.UNREADABLE),
        ("54000", RangeStatus.UNREADABLE),
        ("57014", RangeStatus.TIMED_OUT),
        ("", RangeStatus.UNAVAILABLE),
        ("08006", RangeStatus.UNAVAILABLE),
        ("57P01", RangeStatus.UNAVAILABLE),
        ("42501", RangeStatus.REFUSED),
        ("42P01", RangeStatus.REFUSED),
        ("42601", RangeStatus.REFUSED),
        ("40001", RangeStatus.SNAPSHOT_GONE),
        ("53100", RangeStatus.FAILED),
        ("53200", RangeStatus.FAILED),
        ("55P03", RangeStatus.FAILED),
        ("P0001", RangeStatus.FAILED),
        ("XX000", RangeStatus.FAILED),
    ],
)
def test_only_what_is_wrong_with_rows_makes_them_unreadable(sqlstate: str, status: RangeStatus) -> None:
    assert copy_failure(SOURCE, sqlstate, "said the server").status is status


class KilledError(BaseException):
    """The process is gone: nobody notes anything."""


def kill_between(pipeline: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch, *, after_letter: bool) -> None:
    """The run ends when it would store letters, or when they are stored and its record does not say so."""
    store_letters, store_record = RowLetters.store, store_pipeline
    stored: list[str] = []

    async def letters_stored(row_letters: RowLetters, rows: Sequence[tuple[str, str]]) -> None:
        if rows and not after_letter:
            raise KilledError
        await store_letters(row_letters, rows)
        stored.extend(row for row, _ in rows)

    async def record_stored(bucket: StateBucket, record: PipelineRecord) -> None:
        if stored:
            raise KilledError
        await store_record(bucket, record)

    with monkeypatch.context() as patched:
        patched.setattr(RowLetters, "store", letters_stored)
        patched.setattr(run_ranges, "store_pipeline", record_stored)
        with pytest.raises(KilledError):
            pipeline.run()


@pytest.mark.parametrize("after_letter", [False, True])
@pytest.mark.parametrize("is_mended", [False, True])
def test_a_run_killed_between_letter_and_note_leaves_each_row_in_one_place(
    pipeline: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch, *, is_mended: bool, after_letter: bool
) -> None:
    insert(pipeline, 100, 3, 50)
    kill_between(pipeline, monkeypatch, after_letter=after_letter)
    assert pipeline.record().runs[0].state is RunState.READING
    assert bool(letters(pipeline)) is after_letter
    if is_mended:
        mend(pipeline)
    assert pipeline.run().state is RunState.FINISHED
    assert sorted(ids(pipeline) + dead_ids(pipeline)) == without(100)


def test_a_killed_run_is_taken_up_wherever_it_was(pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path) -> None:
    bad = range(5, 300, 7)
    insert(pipeline, 300, *bad)
    keys = keys_of(pipeline, nats_server, tmp_path)
    with PgsluiceProcess("run", "ratings", config=keys) as process:
        wait_until(lambda: bool(letters(pipeline)) or not process.is_running, deadline_s=60.0, what="a letter", interval_s=0.02)
        pipeline.kill(process)
    assert pipeline.run().state is RunState.FINISHED
    assert ids(pipeline) == without(300, *bad)
    assert dead_ids(pipeline) == list(bad)
