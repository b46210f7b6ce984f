"""What the name of a master says."""

from __future__ import annotations

import os

import pytest

from pgsluice.shared.spark.spark_settings import local_tasks


@pytest.mark.parametrize(
    ("master", "tasks"),
    [("local", 1), ("local[3]", 3), (" local[ 3 , 2 ] ", 3), ("local[*]", os.cpu_count()), ("local-cluster[2,1,1024]", None)],
)
def test_a_local_master_says_how_many_tasks_run_at_the_same_time(master: str, tasks: int | None) -> None:
    assert local_tasks(master) == tasks
