"""Steps in SQL on real servers, between functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.steps.step import PythonStep, SqlStep
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import ReplicaIdentity, Table
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.replicator.pipelines.steps.test_dead_rows import letters
from tests.replicator.pipelines.steps.test_step_runs import EXAMPLES
from tests.replicator.pipelines.test_resumption import kill_and_take_up
from tests.servers import NatsServer

HALVED = SqlStep("SELECT id, cast(v AS int) AS v, updated_at FROM rows WHERE id % 2 = 0")


def insert(pipeline: PipelineUnderTest, *bad: int) -> None:
    """Forty rows, in ranges of ten."""
    pipeline.source.execute("INSERT INTO t SELECT n, n::text, timestamptz '2026-01-01' FROM generate_series(1, 40) n")
    pipeline.source.execute(f"UPDATE t SET v = 'secret' WHERE id = ANY(ARRAY{list(bad)}::bigint[])")
    pipeline.change(batch_rows=10, tasks=2)


def test_sql_and_functions_follow_each_other_and_a_row_that_fails_is_set_aside(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 3, 4, 22)
    doubled = SqlStep("SELECT id, 'is ' || v AS v, updated_at FROM rows WHERE v > 10 OR id < 0")
    pipeline.change(steps=(HALVED, PythonStep(EXAMPLES, "twice", {}), doubled))
    ended = pipeline.run()
    assert (ended.rows, ended.dead) == (40, 2)
    assert pipeline.record().next_range >= 4
    wanted = [n for n in range(2, 41, 2) if n not in (4, 22)]
    expected = {b"%d" % n: b"%d\tis %d" % (n, abs(n)) for n in [*(-n for n in wanted), *(n for n in wanted if n > 10)]}
    assert {key: line.rpartition(b"\t")[0] for key, line in pipeline.merged().items()} == expected
    for stored in letters(pipeline):
        assert stored.letter.reason == "step 1 (sql) failed: CAST_INVALID_INPUT"
        assert "secret" not in repr(stored)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT * FROM parquet.`/etc/passwd`", r"step 1 \(sql\) reads 'parquet./etc/passwd'"),
        ("SELECT v FROM rows", r"step 1 \(sql\) gives no column id"),
    ],
)
def test_a_statement_that_may_not_be_is_refused_before_anything_is_read(
    pipeline: PipelineUnderTest, text: str, said: str
) -> None:
    insert(pipeline)
    pipeline.change(steps=(SqlStep(text),))
    with pytest.raises(UsageError, match=said):
        pipeline.run()
    with pytest.raises(UsageError, match=said):
        pipeline.plan()
    assert pipeline.lines() == []


def test_another_statement_is_another_pipeline() -> None:
    table = Table(1, "public", "t", ReplicaIdentity.DEFAULT, ())
    kinds = [Pipeline("p", "p", "SELECT 1", "public", "t", ("id",), steps=(SqlStep(text),)) for text in ("a", "b")]
    assert len({kind.fingerprint(table, "here") for kind in kinds}) == 2


@pytest.mark.long
@pytest.mark.parametrize("row", [1, 22, 39])
def test_a_run_that_is_killed_is_taken_up_after_its_last_message(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path, row: int
) -> None:
    pipeline.change(steps=(SqlStep("SELECT id, reverse(reverse(v)) AS v, updated_at FROM rows WHERE id > 0"),))
    kill_and_take_up(pipeline, nats_server, tmp_path, row)
