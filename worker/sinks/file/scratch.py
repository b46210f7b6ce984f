"""Transfer of output from tasks to the driver: small pieces in receipts, large ones in a scratch directory next to the files.

A piece is a part of the output: whole lines, whole compressed members, whole row streams. So a file may end after any.
The body of a receipt is a piece, or the place where a task has left it. The directory belongs to one open sink and goes
with its process. Nothing in it is durable, and nothing of it outlives the commit of its batch.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.process.private_directory import LOCK, PrivateDirectory, make_private_directory
from pgsluice.worker.sinks.file.output_directory import file_error, file_errors
from pgsluice.worker.sinks.lines.line_output import write_all

INLINE_BYTES = 64 * 1024  # below this a separate file costs a batch more time than the bytes cost the driver's memory

_INLINE = b"\0"
_STORED = b"\1"


@dataclass(frozen=True, slots=True)
class InlinePiece:
    data: bytes

    def encode(self) -> bytes:
        return _INLINE + self.data

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """``size`` bytes from ``offset`` on of the file ``name`` in the scratch directory."""

    name: str
    offset: int
    size: int

    def encode(self) -> bytes:
        return _STORED + orjson.dumps([self.name, self.offset, self.size])


Piece = InlinePiece | StoredPiece


def decode_piece(body: bytes) -> Piece:
    """Decodes a piece: the inverse of ``encode``."""
    if body[:1] == _INLINE:
        return InlinePiece(body[1:])
    name, offset, size = orjson.loads(body[1:])
    return StoredPiece(name, offset, size)


class ScratchDirectory:
    """The driver's side."""

    def __init__(self, parent: Path, prefix: str) -> None:
        self._parent = parent
        self._prefix = f".{prefix}.scratch-"
        self._directory: PrivateDirectory | None = None

    @property
    def path(self) -> Path:
        assert self._directory is not None, "open comes first"
        return self._directory.path

    def open(self) -> None:
        """Makes the directory, and removes those whose owners are dead."""
        self._directory = make_private_directory(self._parent, self._prefix)

    def clear(self) -> None:
        """Removes what tasks left. What an attempt still writes that Spark no longer waits for goes with the next batch."""
        clear(self.path)

    def close(self) -> None:
        """Closes the directory, if it is open."""
        if self._directory is not None:
            self._directory.close()
            self._directory = None


def clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name != LOCK:
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ScratchWriter:
    """The task's side, picklable: keeps small pieces in their receipts and stores the others."""

    directory: Path

    def receipts(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yields a receipt body for each of ``pieces``.

        An error takes everything out of the scratch directory: the batch cannot be committed any more, and what other
        tasks wrote would take room from the attempt that comes next.
        """
        self._check_reachable()
        name = f"{os.getpid()}-{uuid.uuid4().hex}"
        descriptor, offset, is_complete = None, 0, False
        try:
            for data in pieces:
                piece: Piece = InlinePiece(data)
                if piece.size > INLINE_BYTES:
                    with file_errors(self.directory.parent, "storing a task's output"):
                        if descriptor is None:
                            descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                        write_all(descriptor, data)
                    piece = StoredPiece(name, offset, len(data))
                    offset += len(data)
                yield piece.encode()
            is_complete = True
        except GeneratorExit:
            raise
        except BaseException:
            self._clear()
            raise
        finally:
            if descriptor is not None:
                os.close(descriptor)
                if not is_complete:
                    (self.directory / name).unlink(missing_ok=True)

    def _clear(self) -> None:
        with suppress(OSError):  # the original error is more specific; the next commit clears too
            clear(self.directory)

    def _check_reachable(self) -> None:
        try:
            os.stat(self.directory)
        except FileNotFoundError:
            raise TerminalError(
                f"a Spark task on {socket.gethostname()} does not find {self.directory}",
                "tasks of the file sink write next to its files: run Spark on the worker's machine (spark: master=local[*]),"
                " or give a file-output-dir that all machines share",
            ) from None
        except OSError as error:
            raise file_error(error, self.directory.parent, "looking for the scratch directory") from None
