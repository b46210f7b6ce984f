"""Findings about this machine for the processes that run here: Java, memory, disk, shared memory, the same Python everywhere."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.shared.spark.java import check_java
from pgsluice.shared.spark.spark_settings import DEFAULT_MASTER, is_local, local_tasks

DEFAULT_HEAP = "1g"
OUTSIDE_HEAP = 512 * 2**20
"""Memory of a JVM, in addition to its heap, and of the driver's Python."""

BYTES_PER_TASK = 200 * 2**20
LEAST_DISK = 2 * 2**30
LEAST_SHARED_MEMORY = 64 * 2**20

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def machine_findings(spark: Mapping[str, str], environment: Mapping[str, str]) -> Findings:
    """``spark`` are Spark's settings of the process that is started here."""
    found = Findings(Subject.MACHINE)
    with found.looking("machine-java"):
        check_java(environment)
    master = spark.get("spark.master", DEFAULT_MASTER)
    found.take(_memory(spark, master))
    found.take(_disks(spark))
    if not is_local(master):
        found.take(_executors(spark, environment))
    return found


def _finding(check: str, severity: Severity, fact: str, remedy: str) -> Finding:
    return Finding(check, severity, Subject.MACHINE, fact, remedy)


def _memory(spark: Mapping[str, str], master: str) -> Iterator[Finding]:
    heap = _bytes(spark.get("spark.driver.memory", DEFAULT_HEAP))
    needed = heap + OUTSIDE_HEAP + BYTES_PER_TASK * (local_tasks(master) or 0)
    there = available_memory()
    if there < heap:
        fact = f"{_mib(there)} of memory are available, and Spark's heap alone may take {_mib(heap)}"
        yield _finding("machine-memory", Severity.ERROR, fact, "lower spark: memory, or give the machine more")
    elif there < needed:
        fact = f"{_mib(there)} of memory are available; heap and {local_tasks(master) or 0} tasks may take {_mib(needed)}"
        yield _finding("machine-memory", Severity.WARNING, fact, "lower spark: memory, or fewer tasks by spark: master: local[n]")


def available_memory() -> int:
    """Returns the available memory of the machine, or of the control group that this process may use."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()).isdigit():
        available = min(available, int(text) - int(used.read_text()))
    return available


def _disks(spark: Mapping[str, str]) -> Iterator[Finding]:
    local = spark.get("spark.local.dir", tempfile.gettempdir()).split(",")[0]
    if not os.access(local, os.W_OK):
        yield _finding("machine-disk", Severity.ERROR, f"{local} cannot be written, where Spark works", "set spark.local.dir")
    elif (free := shutil.disk_usage(local).free) < LEAST_DISK:
        yield _finding("machine-disk", Severity.WARNING, f"{local} has {_mib(free)} free, where Spark works", "make room")
    shared = Path("/dev/shm")  # noqa: S108  the mount itself
    if not shared.is_dir() or (free := shutil.disk_usage(shared).free) < LEAST_SHARED_MEMORY:
        fact = f"{shared} has less than 64 MiB free, where rows are handed from tasks to the driver"
        yield _finding("machine-shared-memory", Severity.WARNING, fact, "mount it larger (docker run --shm-size 256m)")


def _executors(spark: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Spark refuses a task whose Python has another minor version than the driver's."""
    python = spark.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON", "python3")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    fact = f"executors start {python}, which has to be Python {version} with this pgsluice, as here"
    yield _finding("machine-executors", Severity.INFO, fact, "set spark.pyspark.python to one that is on every executor")


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else 0


def _mib(size: int) -> str:
    return f"{size // 2**20} MiB"
