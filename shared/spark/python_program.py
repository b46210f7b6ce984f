"""Which Python Spark's tasks run in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pgsluice.shared.spark.spark_settings import PYTHON, has_other_machines, is_local

_SPARK_PYTHON = Path(__file__).with_name("spark_python.sh")
_ON_EXECUTORS = "python3"
"""Whatever that is there; no path of the driver's machine means anything on others."""

_VARIABLE = "PYSPARK_PYTHON"


def choose_python(settings: Mapping[str, str]) -> None:
    """Tells PySpark, which takes it from the environment only. What the user chose, in ``settings`` or there, stays."""
    if PYTHON in settings:
        os.environ[_VARIABLE] = settings[PYTHON]
        return
    if os.environ.get(_VARIABLE, str(_SPARK_PYTHON)) != str(_SPARK_PYTHON):
        return
    master = settings["spark.master"]
    if has_other_machines(master):
        os.environ[_VARIABLE] = _ON_EXECUTORS
        return
    os.environ["PGSLUICE_PYTHON"] = sys.executable
    os.environ["PGSLUICE_PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    is_ours = is_local(master) and os.access(_SPARK_PYTHON, os.X_OK)
    os.environ[_VARIABLE] = str(_SPARK_PYTHON) if is_ours else sys.executable
