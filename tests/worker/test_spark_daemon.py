"""The process that Python workers are forked from is what tasks need before the first fork."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pgsluice.worker.sinks.sink_registry import SINKS

REPOSITORY = Path(__file__).parents[2]

STARTED = """
import gc, json, runpy, signal, sys
from pyspark import daemon
from pgsluice.shared import telemetry

def tell():
    blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    print(json.dumps({"modules": list(sys.modules), "frozen": gc.get_freeze_count(), "blocked": blocked}))
    telemetry.logger("pgsluice.task").info("a task says", table="public.t")

daemon.manager = tell
runpy.run_module(sys.argv[1], run_name="__main__")
"""
"""What Spark starts, up to the point from which PySpark forks."""

WORKER, REPLICATOR = "pgsluice.worker.spark_daemon", "pgsluice.replicator.snapshot.spark_daemon"


def started(module: str) -> tuple[dict[str, Any], str]:
    """The process's state, and its log."""
    command = [sys.executable, "-c", STARTED, module]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    state: dict[str, Any] = json.loads(ended.stdout)
    return state, ended.stderr


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        (
            WORKER,
            {"numpy", "pgsluice.worker.batches.task"} | {f"{package}.sink" for package in SINKS.values()},
        ),
        (REPLICATOR, {"pyspark.worker", "pgsluice.replicator.snapshot.copy_task"}),
    ],
)
def test_what_tasks_need_is_there_before_the_first_fork(module: str, needed: set[str]) -> None:
    state, log = started(module)
    assert needed <= set(state["modules"])
    assert state["frozen"] > 0
    assert {signal.SIGTERM, signal.SIGINT} <= set(state["blocked"])
    assert log.rstrip().endswith("INFO    task  a task says  table=public.t"), "a task's events have their fields"
