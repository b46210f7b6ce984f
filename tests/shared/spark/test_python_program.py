"""Which Python Spark is told to run."""

from __future__ import annotations

import sys

import pytest

from pgsluice.shared.spark.python_program import choose_python

CLUSTER = {"spark.master": "spark://spark:7077"}
VARIABLE = "PYSPARK_PYTHON"


def chosen(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], given: str | None = None) -> str:
    environment = {} if given is None else {VARIABLE: given}
    monkeypatch.setattr("os.environ", environment)
    choose_python(settings)
    return environment[VARIABLE]


def test_executors_on_other_machines_run_their_own_python_unless_somebody_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, CLUSTER) == "python3"
    assert chosen(monkeypatch, CLUSTER, "/env/python") == "/env/python"
    assert chosen(monkeypatch, CLUSTER | {"spark.pyspark.python": "/set/python"}, "/env/python") == "/set/python"


def test_what_a_spark_before_it_chose_is_not_what_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = chosen(monkeypatch, {"spark.master": "local[2]"})
    assert ours.endswith("spark_python.sh")
    assert chosen(monkeypatch, CLUSTER, ours) == "python3"


def test_executors_on_our_machine_run_our_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, {"spark.master": "local-cluster[1,1,512]"}) == sys.executable
    assert chosen(monkeypatch, {"spark.master": "spark://127.0.0.1:7077"}) == sys.executable
