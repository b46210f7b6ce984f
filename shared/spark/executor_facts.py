"""The facts that an executor reports when it is checked, before it gets any task."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TASK_LIBRARIES = ("nats-py", "psycopg", "orjson", "numpy", "pyarrow", "regex")
"""Libraries that tasks import at some time, by the names under which they are installed."""


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """The state of a task's process. ``code`` is where it has the pgsluice package from; ``libraries`` are its versions
    of TASK_LIBRARIES; ``unreadable`` are the files that it needs and cannot read. (PySpark itself refuses another minor
    version of Python.)"""

    host: str
    code: str
    libraries: dict[str, str]
    unreadable: tuple[str, ...]

    @classmethod
    def of_this_process(cls, files: Sequence[str]) -> ExecutorFacts:
        code, libraries = str(Path(__file__).parents[2]), dict(_installed(TASK_LIBRARIES))
        return cls(socket.gethostname(), code, libraries, tuple(path for path in files if not os.access(path, os.R_OK)))


@dataclass(frozen=True, slots=True)
class LookAtExecutor:
    """The task. Picklable."""

    files: tuple[str, ...]

    def __call__(self, _: int) -> Iterator[ExecutorFacts]:
        yield ExecutorFacts.of_this_process(self.files)


def _installed(libraries: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in libraries:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
