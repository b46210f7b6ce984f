"""Spark starts where others have set up a Spark of theirs, or the error says what hinders it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers.program import REPOSITORY

START = """
from pgsluice.shared.spark.session import Spark
spark = Spark("test", {"spark.driver.memory": "512m"}, "pgsluice.worker.spark_daemon")
try:
    spark.start()
    print("started:", spark.run_tasks(sorted, [[3, 1]]))
except Exception as error:
    print(f"failed: {error}")
finally:
    spark.close()
"""


def started(*program: str, **variables: str) -> str:
    """What a process says that starts Spark and runs a task."""
    command: Sequence[str] = [*program, sys.executable, "-c", START]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | variables
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return ended.stdout.strip()


WARN = """
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import LogSettings
from pgsluice.shared.spark.session import Spark
from tests.shared.spark.warning_task import warn
telemetry.set_up(LogSettings("WARNING", "text"))
spark = Spark("test", {"spark.driver.memory": "512m"}, "pgsluice.worker.spark_daemon")
try:
    spark.start()
    spark.run_tasks(warn, ["public.t"])
finally:
    spark.close()
"""


def test_what_a_task_warns_of_is_a_warning_of_the_process_that_runs_it() -> None:
    command, environment = [sys.executable, "-c", WARN], os.environ | {"PYTHONPATH": str(REPOSITORY)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stderr
    [line] = [line for line in said.splitlines() if "a column becomes text" in line]
    assert line.split(maxsplit=1)[1] == "WARNING tests.shared.spark.warning_task  a column becomes text  table=public.t"


def test_what_is_set_for_a_spark_of_others_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://nowhere:7077\nspark.driver.memory wrong\n")
    (tmp_path / "spark-env.sh").write_text("exit 3\n")
    said = started(
        SPARK_HOME=str(tmp_path),
        SPARK_CONF_DIR=str(tmp_path),
        SPARK_LOCAL_DIRS="/nowhere",
        SPARK_SUBMIT_OPTS="-XX:+NoSuchOption",
        PYSPARK_SUBMIT_ARGS="--master spark://nowhere:7077 their.py",
    )
    assert said == "started: [1, 3]"


def test_a_machine_whose_name_has_no_address_runs_spark() -> None:
    assert (
        started("unshare", "--map-root-user", "--uts", "sh", "-c", 'hostname nowhere.invalid; exec "$@"', "sh")
        == "started: [1, 3]"
    )


def test_a_user_without_an_account_is_told() -> None:
    said = started("unshare", "--map-user=54321")
    assert said.startswith("failed: Spark did not start (")
    assert "user id 54321 has no account on this machine: run it as a user that has" in said


def test_what_the_jvm_says_when_it_does_not_start_is_in_the_error() -> None:
    said = started(JAVA_TOOL_OPTIONS="-XX:+NoSuchOption")
    assert said.startswith(
        "failed: Spark did not start (Unrecognized VM option 'NoSuchOption'): see the lines of Spark in the log"
    )
