"""Results of tasks in files, where tasks run on the driver's machine.

What is large is spared the way through the JVM, which copies each byte several times. A file is in a private directory of
Spark's, in shared memory where that has room. Its name is gone when the driver has opened it.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from pgsluice.shared.process.private_directory import free_bytes

ROOM_BYTES = 128 * 1024 * 1024
"""The free space that a directory must have in order to replace another; containers often have 64 MiB of shared memory."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class FiledTask(Generic[T, U]):
    """Yields the path of a file with what ``task`` yields. ``directories`` are tried in their order."""

    task: Callable[[T], Iterable[U]]
    directories: tuple[Path, ...]

    def __call__(self, given: T) -> Iterator[str]:
        path = _with_room(self.directories) / f"results-{uuid.uuid4().hex}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for result in self.task(given):
                    pickle.dump(result, file, pickle.HIGHEST_PROTOCOL)
        except BaseException:
            path.unlink()
            raise
        yield str(path)


def filed_results(path: str) -> Iterator[Any]:
    """Yields the results in the file, whose name is removed when this returns."""
    file = open(path, "rb")  # noqa: SIM115  whoever takes the results closes it
    os.unlink(path)
    return _read(file)


def _read(file: BinaryIO) -> Iterator[Any]:
    with file:
        while file.peek(1):  # type: ignore[attr-defined]
            yield pickle.load(file)  # noqa: S301  from our own processes


def _with_room(directories: Sequence[Path]) -> Path:
    return next((each for each in directories[:-1] if free_bytes(each) >= ROOM_BYTES), directories[-1])
