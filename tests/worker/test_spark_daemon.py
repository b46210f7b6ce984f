"""The process that Python workers are forked from has imported what tasks need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pgsluice.worker.sinks.sink_registry import SINKS

REPOSITORY = Path(__file__).parents[2]

IMPORTED = """
import sys
import pgsluice.worker.spark_daemon
from pgsluice.worker.sinks.sink_registry import preload_sinks
preload_sinks()
print(*sys.modules)
"""


def test_what_tasks_need_is_imported_before_the_first_fork() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORTED], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    imported = set(ended.stdout.split())
    assert {"pandas", "pyarrow", "pgsluice.worker.batches.task", "pgsluice.worker.batches.source"} <= imported
    assert {f"{package}.sink" for package in SINKS.values()} <= imported
