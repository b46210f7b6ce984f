"""What is said of executors that cannot run our tasks."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.spark.executor_facts import TASK_LIBRARIES, ExecutorFacts, LookAtExecutor
from pgsluice.shared.spark.executors import check_fit
from pgsluice.shared.spark.failure import failure_reason, start_error
from tests.servers.program import REPOSITORY

CODE = "pgsluice-0123456789ab.zip"
FIT = ExecutorFacts("spark-3", f"/work/{CODE}/pgsluice", dict.fromkeys(TASK_LIBRARIES, "1.0"), ())


def test_an_executor_with_our_code_all_libraries_and_all_files_is_fit() -> None:
    check_fit(FIT, CODE)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            replace(FIT, code="/usr/lib/python3/pgsluice"),
            "the executor on spark-3 takes pgsluice from /usr/lib/python3/pgsluice, and",
        ),
        (
            replace(FIT, libraries={"psycopg": "3.2"}),
            "the executor on spark-3 lacks Python libraries: nats-py, orjson, numpy, pyarrow, regex: ",
        ),
        (replace(FIT, unreadable=("/etc/a.crt", "/etc/a.key")), "the executor on spark-3 cannot read /etc/a.crt, /etc/a.key: "),
    ],
)
def test_what_it_lacks_is_said_with_its_machine(facts: ExecutorFacts, sentence: str) -> None:
    with pytest.raises(TransientError) as raised:
        check_fit(facts, CODE)
    assert sentence in str(raised.value)
    assert raised.value.cause is Cause.SPARK


def test_a_process_says_what_it_has_and_which_files_it_cannot_read(tmp_path: Path) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.touch()
    (facts,) = LookAtExecutor((str(there), str(missing)))(0)
    assert facts.unreadable == (str(missing),)
    assert set(facts.libraries) == set(TASK_LIBRARIES)
    assert Path(facts.code).name == "pgsluice"


def test_the_libraries_of_tasks_are_requirements_of_ours() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    required = {requirement.partition(">")[0].partition("[")[0] for requirement in project["dependencies"]}
    assert set(TASK_LIBRARIES) <= required


LOST = "Job aborted due to stage failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): "


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (
            'java.io.IOException: Cannot run program "/x/python": error=2',
            "an executor on 10.0.0.7 cannot run /x/python: name its",
        ),
        ("ModuleNotFoundError: No module named 'nats'\nPYTHONPATH was:", "an executor on 10.0.0.7 has no Python module nats: "),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot",
            "an executor on 10.0.0.7 has Python 3.12, and the driver 3.11: ",
        ),
    ],
)
def test_what_keeps_a_python_from_starting_is_said_without_a_stack_trace(raised: str, sentence: str) -> None:
    reason = failure_reason(Exception(f"An error occurred.\n{LOST}{raised}\n\tat java.base/java.lang.Thread.run"))
    assert reason.startswith(sentence)
    assert "\n" not in reason


def test_a_spark_without_its_client_of_kubernetes_names_the_image_that_has_it() -> None:
    error = start_error(RuntimeError("org.apache.spark.SparkException: Could not parse Master URL: 'k8s://https://10.0.0.1'"))
    assert "use the image 'pgsluice-spark-driver'" in str(error)
