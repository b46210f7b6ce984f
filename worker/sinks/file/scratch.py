"""The body of a receipt: a piece of output, or where a task has left it.

A piece is what stands in the output: whole lines, whole compressed members, whole row streams. So a file may end behind any.

The scratch directory: where tasks leave their output for the driver, hidden beside the files.

A directory belongs to one open sink, which holds a lock on it while it lives; so a successor knows which are litter. Nothing in
it is durable, and nothing of it outlives the commit of its batch.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.file.durable import file_error, file_errors, write_all

INLINE_BYTES = 64 * 1024  # below this a file of its own costs a batch more time than the bytes cost the driver's memory

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
    """The inverse of ``encode``."""
    if body[:1] == _INLINE:
        return InlinePiece(body[1:])
    name, offset, size = orjson.loads(body[1:])
    return StoredPiece(name, offset, size)


_LOCK = "lock"


class ScratchDirectory:
    """The driver's side."""

    def __init__(self, parent: Path, prefix: str) -> None:
        self._parent = parent
        self._prefix = f".{prefix}.scratch-"
        self._lock: int | None = None
        self.path = parent / (self._prefix + uuid.uuid4().hex)

    def open(self) -> None:
        """Makes the directory, and removes those whose owners are dead."""
        for path in self._parent.glob(self._prefix + "*"):
            if path != self.path and not _is_locked(path):
                shutil.rmtree(path)
        self.path.mkdir(mode=0o700)
        self._lock = os.open(self.path / _LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def clear(self) -> None:
        """Removes what tasks left. What an attempt still writes that Spark no longer waits for goes with the next batch."""
        clear(self.path)

    def close(self) -> None:
        """Nothing happens when it is not open."""
        if self._lock is not None:
            shutil.rmtree(self.path)
            os.close(self._lock)
            self._lock = None


def clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name != _LOCK:
            path.unlink(missing_ok=True)


def _is_locked(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / _LOCK, os.O_WRONLY)
    except FileNotFoundError:  # its owner died between making the directory and the lock
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@dataclass(frozen=True, slots=True)
class ScratchWriter:
    """The task's side, picklable: keeps small pieces in their receipts and stores the others."""

    directory: Path

    def receipts(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """A receipt body for each of ``pieces``.

        An error takes everything out of the scratch directory: the batch cannot be committed any more, and what other tasks wrote
        would take room from the attempt that comes next.
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
        with suppress(OSError):  # the error that brought us here says more; the next commit clears too
            clear(self.directory)

    def _check_reachable(self) -> None:
        try:
            os.stat(self.directory)
        except FileNotFoundError:
            raise TerminalError(
                f"a Spark task on {socket.gethostname()} does not find {self.directory}",
                "tasks of the file sink write beside its files: run Spark on the worker's machine (spark: master=local[*]),"
                " or give a file-output-dir that all machines share",
            ) from None
        except OSError as error:
            raise file_error(error, self.directory.parent, "looking for the scratch directory") from None
