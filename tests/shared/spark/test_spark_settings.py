"""What the name of a master says."""

from __future__ import annotations

import os

import pytest

from pgsluice.shared.spark.spark_settings import full_names, has_other_machines, local_tasks, with_most_cores


@pytest.mark.parametrize(
    ("master", "tasks"),
    [("local", 1), ("local[3]", 3), (" local[ 3 , 2 ] ", 3), ("local[*]", os.cpu_count()), ("local-cluster[2,1,1024]", None)],
)
def test_a_local_master_says_how_many_tasks_run_at_the_same_time(master: str, tasks: int | None) -> None:
    assert local_tasks(master) == tasks


@pytest.mark.parametrize(
    ("master", "has"),
    [
        ("local[4]", False),
        ("local-cluster[2,1,1024]", False),
        ("spark://127.0.0.1:7077", False),
        ("spark://localhost:7077,[::1]:7077", False),
        ("spark://spark:7077", True),
        ("spark://localhost:7077,spark:7077", True),
        ("k8s://https://127.0.0.1:6443", True),
        ("yarn", True),
    ],
)
def test_a_master_says_whether_executors_may_be_on_other_machines(master: str, has: bool) -> None:
    assert has_other_machines(master) is has


def test_an_application_asks_a_cluster_for_some_cores_unless_the_user_says_how_many() -> None:
    assert with_most_cores({"spark.master": "spark://spark:7077"}, 4)["spark.cores.max"] == "4"
    assert with_most_cores({"spark.master": "spark://spark:7077", "spark.cores.max": "9"}, 4)["spark.cores.max"] == "9"
    assert with_most_cores({"spark.master": "local[2]"}, 4) == {"spark.master": "local[2]"}
    assert with_most_cores({}, 4) == {}


def test_short_names_stand_for_names_of_spark() -> None:
    assert full_names({"python": "/p", "insecure": "true"}) == {"spark.pyspark.python": "/p", "spark.pgsluice.insecure": "true"}
    with pytest.raises(ValueError, match=r"known: master, memory, python, insecure and every spark\.\* name"):
        full_names({"cores": "1"})
