"""Which Python Spark's tasks run in, and which Spark that is: PySpark takes both from the environment."""

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


_OTHER_SPARKS = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)
"""What people set for a Spark of theirs. Ours is the one that PySpark brings along, and its settings are in our configuration."""
_ADDRESS, _DIRECTORIES = "SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS"


def leave_out_other_sparks(*, is_local: bool) -> None:
    """Forgets the environment of other Sparks. With a local master the machine's own name need not resolve, and what Spark writes
    goes into our directories."""
    for name in _OTHER_SPARKS:
        os.environ.pop(name, None)
    if is_local:
        os.environ.pop(_DIRECTORIES, None)
        os.environ[_ADDRESS] = "127.0.0.1"


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
