"""A run that replaces all rows is told from others, has an end, and is begun anew when it was not finished."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pgsluice.replicator.pipelines.pipeline import RunMode, WriteMode
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.pipelines.run_records import RunState
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.replicator.pipelines.test_pipeline_run import insert
from tests.waiting import wait_until


@pytest.fixture
def replacing(pipeline: PipelineUnderTest) -> PipelineUnderTest:
    pipeline.change(mode=RunMode.FULL, incremental_key="", write=WriteMode.REPLACE)
    return pipeline


def marks(pipeline: PipelineUnderTest) -> list[tuple[int, str, int]]:
    """Of each message: which run, which part of it, how many rows."""
    found = []
    for body in pipeline.bodies():
        mark = body.headers.mark
        assert mark.run
        part = "end" if mark.ends else "begin" if body.headers.is_begin else "rows" if body.headers.rows else "nothing"
        found.append((mark.run, part, body.headers.rows))
    return found


def test_a_run_that_replaces_has_an_end_with_rows_or_without(replacing: PipelineUnderTest) -> None:
    insert(replacing, 1, 10)
    assert replacing.run().state is RunState.FINISHED
    replacing.source.execute("DELETE FROM t")
    replacing.run()
    assert marks(replacing) == [(1, "begin", 0), (1, "rows", 10), (1, "end", 0), (2, "begin", 0), (2, "end", 0)]


def test_workers_of_earlier_versions_refuse_its_first_message(replacing: PipelineUnderTest) -> None:
    replacing.run()
    begin, end = replacing.bodies()
    assert begin.headers.encode()["Pgsluice-Format"] == end.headers.encode()["Pgsluice-Format"] == "copy-text/2"
    assert begin.headers.is_fence
    assert end.headers.is_fence


def test_what_is_left_of_a_run_is_not_taken_up(replacing: PipelineUnderTest) -> None:
    """Rows under two snapshots would be a mixture."""
    insert(replacing, 1, 10)
    replacing.change(query="SELECT id, (10 / (id - (SELECT count(*) FROM bad)))::text AS v, updated_at FROM t")
    replacing.source.execute("CREATE TABLE bad AS SELECT generate_series(1, 7)")
    replacing.change(retries=0)
    with pytest.raises(TerminalError, match="correct the query"):
        replacing.run()
    replacing.source.execute("DELETE FROM bad; INSERT INTO t VALUES (11)")
    again = replacing.run()
    assert (again.number, again.attempt, again.rows) == (2, 1, 11)
    assert [each.state for each in replacing.record().runs] == [RunState.ABANDONED, RunState.FINISHED]
    assert [part for run, part, _ in marks(replacing) if run == 2] == ["begin", "rows", "end"]
    assert "end" not in [part for run, part, _ in marks(replacing) if run == 1]


@pytest.mark.parametrize(
    "anew", ["TRUNCATE t; INSERT INTO t SELECT n FROM generate_series(1, 7) n", "ALTER TABLE t ALTER v TYPE integer USING 1"]
)
def test_a_table_that_is_being_written_anew_is_never_read_as_an_empty_one(replacing: PipelineUnderTest, anew: str) -> None:
    """To a snapshot of before its rows are in a file that is no more, or came too late: the target would lose all of them."""
    insert(replacing, 1, 5)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with replacing.source.connect(autocommit=False) as loading, ThreadPoolExecutor(1) as threads:
        loading.execute(anew.encode())
        running = threads.submit(replacing.run)
        wait_until(lambda: running.done() or replacing.source.execute(waiting), what="the run waits for the table")
        loading.commit()
        assert running.result().rows_read == len(replacing.expected())
    assert replacing.merged() == replacing.expected()


def test_each_attempt_has_a_higher_version_though_the_source_went_back(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 3)
    versions = [pipeline.run(full=True).version for _ in range(3)]
    assert versions == sorted(set(versions))
    record = pipeline.record()
    assert record.next_version(1) == versions[-1] + 1
    assert {body.headers.mark.version for body in pipeline.bodies()} == set(versions)


def test_a_run_says_which_column_tells_of_deleted_rows(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1, 3)
    pipeline.change(query="SELECT id, v, updated_at, id = 2 AS gone FROM t", deleted_column="gone")
    pipeline.run()
    assert {body.headers.mark.deletes for body in pipeline.bodies()} == {4}
    pipeline.change(deleted_column="lost")
    with pytest.raises(UsageError, match="no column lost"):
        pipeline.run()
