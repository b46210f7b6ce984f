"""How many batches a run is cut into, and how many are read at the same time, where nobody chose."""

from __future__ import annotations

import pytest

from pgsluice.replicator.pipelines.pipeline import BATCHES_PER_TASK, MOST_DEFAULT_TASKS, Pipeline


def pipeline(batch_rows: int = 0, tasks: int = 0) -> Pipeline:
    return Pipeline("p", "p", "SELECT 1 AS id", "public", "t", ("id",), batch_rows=batch_rows, tasks=tasks)


def test_batches_that_nobody_sized_keep_all_tasks_busy_and_are_few() -> None:
    borders = 400
    batches = borders / pipeline(tasks=4).borders_per_batch(borders)
    assert batches == 4 * BATCHES_PER_TASK
    assert pipeline(tasks=4).borders_per_batch(3) == 1


def test_one_task_reads_everything_in_one_batch() -> None:
    assert pipeline(tasks=1).borders_per_batch(400) == 400


def test_a_size_that_was_chosen_is_kept() -> None:
    assert pipeline(batch_rows=10, tasks=1).borders_per_batch(400) == 1
    assert pipeline(batch_rows=10).border_rows == 10


@pytest.mark.parametrize(("master", "tasks"), [("local[1]", 1), ("local[2]", 1), ("local[6]", 3), ("local[64]", 4)])
def test_tasks_leave_half_of_a_machine_to_the_servers(master: str, tasks: int) -> None:
    assert pipeline().with_tasks({"spark.master": master}).tasks == tasks
    assert pipeline(tasks=7).with_tasks({"spark.master": master}).tasks == 7


def test_a_cluster_has_cores_of_its_own() -> None:
    assert pipeline().with_tasks({"spark.master": "spark://cluster:7077"}).tasks == MOST_DEFAULT_TASKS
