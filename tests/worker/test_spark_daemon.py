"""The process that Python workers are forked from is what tasks need before the first fork."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgsluice.rules.ruleset import NO_RULES, TableRules
from pgsluice.rules.transformation import UNTRANSFORMED, Transformation
from pgsluice.shared.wire.table import TablePattern
from pgsluice.worker.batches.task import PRELOAD, modules_to_preload
from pgsluice.worker.sinks.sink_registry import find_sink

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


def started(module: str, preload: str) -> tuple[dict[str, Any], str]:
    """The process's state, and its log."""
    command, environment = [sys.executable, "-c", STARTED, module], os.environ | {PRELOAD: preload}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    state: dict[str, Any] = json.loads(ended.stdout)
    return state, ended.stderr


class OwnSink:
    """Somebody's."""


def preload(kind: str, transformation: Transformation) -> str:
    module, _, name = find_sink(kind).sink.partition(":")
    return modules_to_preload(object.__new__(getattr(importlib.import_module(module), name)), transformation)


TASK = {"numpy", "pgsluice.worker.batches.task"}
RULES = Transformation(replace(NO_RULES, entries=(TableRules("rules.yml", TablePattern.parse("t"), ()),)))


def test_the_module_of_somebodys_own_sink_is_not_imported_before_it_is_needed() -> None:
    assert modules_to_preload(OwnSink(), UNTRANSFORMED) == ""


@pytest.mark.parametrize(
    ("module", "preload", "needed", "spared"),
    [
        (WORKER, preload("postgres", UNTRANSFORMED), TASK | {"psycopg", "pgsluice.worker.sinks.postgres.sink"}, {"pyarrow"}),
        (WORKER, preload("webhook", RULES), TASK | {"pyarrow.compute", "pgsluice.worker.sinks.webhook.sink"}, {"psycopg"}),
        (REPLICATOR, "", {"pyspark.worker", "pgsluice.replicator.snapshot.copy_task"}, {"pyarrow"}),
    ],
)
def test_what_tasks_need_is_there_before_the_first_fork(module: str, preload: str, needed: set[str], spared: set[str]) -> None:
    state, log = started(module, preload)
    assert needed <= set(state["modules"])
    assert not spared & set(state["modules"])
    assert state["frozen"] > 0
    assert {signal.SIGTERM, signal.SIGINT} <= set(state["blocked"])
    event = json.loads(log.splitlines()[-1])
    assert (event["level"], event["message"], event["table"]) == ("INFO", "a task says", "public.t")
