"""Memory of Spark's processes on this machine: the JVM's heap, and the Python processes that run tasks."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError

from pgsluice.shared.spark.session import Spark

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Heap(NamedTuple):
    """Bytes; ``most`` is what it may grow to."""

    used: int
    most: int


class SparkMemory:
    """Asks the JVM on the caller's thread, by a separate connection. None while Spark starts, and once the JVM is gone."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._bean: Any = None

    def heap(self) -> Heap | None:
        if not hasattr(self._spark, "context"):
            return None
        try:
            if self._bean is None:
                jvm: Any = self._spark.context._jvm
                self._bean = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
            usage = self._bean.getHeapMemoryUsage()
            return Heap(int(usage.getUsed()), int(usage.getMax()))
        except (Py4JError, OSError):
            return None

    def python_rss(self) -> int | None:
        """Returns resident memory of all processes below the JVM."""
        root = self._spark.process_id
        return None if root is None else sum(map(_resident_bytes, descendants(root)))


def descendants(root: int) -> set[int]:
    """Returns the existing processes that ``root`` or one of its descendants started."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                stat = (_PROC / name / "stat").read_bytes()
                children.setdefault(int(stat.rpartition(b")")[2].split()[1]), []).append(int(name))
    found: set[int] = set()
    waiting = list(children.get(root, ()))
    while waiting:
        process = waiting.pop()
        found.add(process)
        waiting += children.get(process, ())
    return found


def _resident_bytes(process: int) -> int:
    with contextlib.suppress(OSError):
        return int((_PROC / str(process) / "statm").read_text().split()[1]) * _PAGE_BYTES
    return 0
