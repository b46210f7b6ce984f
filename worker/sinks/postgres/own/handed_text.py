"""COPY text that tasks hand to the driver in files, where both run on one machine.

The driver copies it into the target's tables in the transaction that moves the position, so rows that are only inserted are
written once; a staging table has them written twice. The files are in a directory of the driver's process, in shared memory where
that has room, and go with their batch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.process.private_directory import LOCK, PrivateDirectory, free_bytes, make_private_directory
from pgsluice.worker.sinks.postgres.fold.piece import HandedText

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  where the system has it
_PREFIX = "pgsluice-handed-"

_BLOCK_BYTES = 128 * 1024
"""psycopg gives libpq no more at a time, and what is read next takes the place of it."""

ROOM_BYTES = 512 * 1024 * 1024
"""The space that must be free in shared memory; containers often have 64 MiB of it."""


class HandoverDirectory:
    """Made when it is first asked for."""

    def __init__(self) -> None:
        self._made: PrivateDirectory | None = None

    @property
    def path(self) -> str:
        if self._made is None:
            has_room = os.access(_SHARED_MEMORY, os.W_OK) and free_bytes(_SHARED_MEMORY) >= ROOM_BYTES
            self._made = make_private_directory(_SHARED_MEMORY if has_room else Path(tempfile.gettempdir()), _PREFIX)
        return str(self._made.path)

    def clear(self, up_to_sequence: int) -> None:
        """Removes what partitions handed over whose first sequence is at most ``up_to_sequence``: their batch is applied."""
        if self._made is None:
            return
        for name in os.listdir(self._made.path):
            if name != LOCK and int(name.partition("_")[0]) <= up_to_sequence:
                os.unlink(self._made.path / name)

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()


def hand_over(directory: str, first_sequence: int, texts: Sequence[bytes]) -> list[HandedText]:
    """Writes texts for a single attempt at one partition. Raises OSError when there is no room; nothing is left then."""
    path = os.path.join(directory, f"{first_sequence}_{uuid.uuid4().hex[:12]}")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            handed = []
            for text in texts:
                handed.append(HandedText(path, file.tell(), len(text)))
                _write(file.fileno(), text)
    except OSError:
        os.unlink(path)
        raise
    return handed


def fetch_handed(handed: HandedText) -> Iterator[bytes]:
    """Yields the text in blocks. Raises TransientError when some of it is missing: then the rows have to be written
    again."""
    start, end = handed.start, handed.start + handed.size
    with contextlib.suppress(FileNotFoundError), open(handed.path, "rb", buffering=0) as file:
        while block := os.pread(file.fileno(), min(_BLOCK_BYTES, end - start), start):
            start += len(block)
            yield block
    if start != end:
        raise TransientError("rows that a task handed over are gone", "the batch is written again", Cause.TARGET)


def _write(descriptor: int, text: bytes) -> None:
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
