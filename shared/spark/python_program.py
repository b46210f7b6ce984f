"""The Python that runs Spark's tasks, and the Spark: PySpark takes both from the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pgsluice.shared.spark.spark_settings import PYTHON, has_other_machines, is_local

_SPARK_PYTHON = Path(__file__).with_name("spark_python.sh")
_ON_EXECUTORS = "python3"
"""The Python of the other machine; no path of the driver's machine is valid there."""

_VARIABLE = "PYSPARK_PYTHON"


_OTHER_SPARKS = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_LAUNCHER_OPTS",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)
"""Variables for another Spark installation. pgsluice uses the one that PySpark contains, with settings from its own
configuration."""
_OF_CLUSTERS = ("SPARK_LOCAL_DIRS", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that a Spark on a cluster may need, and a local one has itself or does without."""
_ADDRESS = "SPARK_LOCAL_IP"


def leave_out_other_sparks(*, is_local: bool) -> None:
    """Removes the environment of other Sparks. With a local master the machine's own name need not resolve, and Spark
    writes into pgsluice's directories."""
    for name in _OTHER_SPARKS:
        os.environ.pop(name, None)
    if is_local:
        for name in _OF_CLUSTERS:
            os.environ.pop(name, None)
        os.environ[_ADDRESS] = "127.0.0.1"


def choose_python(settings: Mapping[str, str]) -> None:
    """Sets the Python for PySpark, which reads it from the environment only. The user's choice, in ``settings`` or
    there, stays."""
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
