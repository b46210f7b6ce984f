"""Steps on real servers: the stream holds what they make of the query's rows."""

from __future__ import annotations

import sys

import pytest

from pgsluice.replicator.pipelines.steps.step import PythonStep
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.snapshot_message import split_snapshot_body
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest

EXAMPLES = "tests.replicator.pipelines.steps.example_steps"


def use(pipeline: PipelineUnderTest, *functions: str, **settings: object) -> None:
    pipeline.change(steps=tuple(PythonStep(EXAMPLES, function, settings) for function in functions))


def insert(pipeline: PipelineUnderTest, rows: int) -> None:
    pipeline.source.execute(
        f"INSERT INTO t SELECT n, 'v' || n, timestamptz '2026-01-01 00:00:00.5' FROM generate_series(1, {rows}) n"
    )


def test_rows_come_as_steps_make_them_with_the_columns_that_they_give(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 3)
    use(pipeline, "shout", mark="?")
    assert pipeline.plan().columns == (
        ("id", "bigint"),
        ("v", "text"),
        ("updated_at", "timestamp with time zone"),
        ("size", "integer"),
    )
    assert pipeline.run().rows == 3
    assert pipeline.lines() == [b"%d\tV%d?\t2026-01-01 00:00:00.5+00\t3" % (n, n) for n in (1, 2, 3)]
    table, _ = split_snapshot_body(pipeline.bodies()[0].data)
    assert [column.name for column in table.columns] == ["id", "v", "updated_at", "size"]


def test_steps_follow_each_other_and_give_as_many_rows_as_they_like(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 4)
    use(pipeline, "only_even", "twice")
    pipeline.run()
    assert sorted(pipeline.merged()) == [b"-2", b"-4", b"2", b"4"]


def test_the_next_run_goes_on_from_the_query_s_rows_whatever_became_of_them(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 5)
    use(pipeline, "only_even")
    pipeline.run()
    assert pipeline.run().rows == 0
    pipeline.source.execute("INSERT INTO t VALUES (6, 'v6', timestamptz '2026-01-02')")
    assert pipeline.run().rows == 1
    assert sorted(pipeline.merged()) == [b"2", b"4", b"6"]


def test_other_steps_ask_for_a_full_run(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 2)
    use(pipeline, "shout")
    pipeline.run()
    use(pipeline, "shout", mark="?")
    with pytest.raises(UsageError, match="has changed since its last run"):
        pipeline.run()


def test_a_module_that_is_not_allowed_is_refused_before_it_is_imported(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 1)
    pipeline.change(steps=(PythonStep("antigravity", "fly"),))
    for attempt in (pipeline.run, pipeline.plan):
        with pytest.raises(UsageError, match="module 'antigravity', which is not allowed here"):
            attempt()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("absent", "defines no function 'absent'"),
        ("join", "defines no function 'join'"),
        ("without_key", "gives no column id"),
        ("nested", "column 's' the type struct<a: int64>"),
        ("no_batch", "gives a dict, and has to give a pyarrow.RecordBatch"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_before_anything_is_read(
    pipeline: PipelineUnderTest, function: str, said: str
) -> None:
    insert(pipeline, 1)
    use(pipeline, function)
    with pytest.raises(UsageError, match=said):
        pipeline.run()
