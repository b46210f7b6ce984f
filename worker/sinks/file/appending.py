"""One commit's additions to the output: the file in progress grows, and others follow it as it gets full."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, assert_never

from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.worker.sinks.file.applied_position import FilePosition
from pgsluice.worker.sinks.file.output_directory import FileFormat, Layout, sync_directory
from pgsluice.worker.sinks.file.scratch import InlinePiece, Piece, StoredPiece
from pgsluice.worker.sinks.lines.line_output import write_all


class Appending:
    """``number``, ``size`` and ``began_at`` describe the file in progress like ``FilePosition``, with appended bytes
    included. A context manager that closes what is open; nothing is durable before ``sync``."""

    def __init__(
        self,
        layout: Layout,
        file_format: FileFormat,
        scratch: Path,
        rotate_bytes: int,
        position: FilePosition,
        clock: Callable[[], float],
    ) -> None:
        self.number, self.size, self.began_at = position.number, position.size, position.began_at
        self._layout = layout
        self._format = file_format
        self._scratch = scratch
        self._rotate_bytes = rotate_bytes
        self._clock = clock
        self._output: int | None = None
        self._created = False
        self._stored: tuple[str, int] | None = None
        """The scratch file read last, and its descriptor."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._output is not None:
            os.close(self._output)
        if self._stored is not None:
            os.close(self._stored[1])

    def append(self, piece: Piece) -> None:
        if not piece.size:
            return
        if self._output is None:
            self._output = self._open_output()
        if not self.size:
            self.began_at = self._clock()
        match piece:
            case InlinePiece():
                write_all(self._output, piece.data)
            case StoredPiece():
                self._copy(piece, self._output)
            case unreachable:
                assert_never(unreachable)
        self.size += piece.size
        if self.size >= self._rotate_bytes:
            self.end_file()

    def end_file(self) -> None:
        """Ends the file: the next piece begins a new one."""
        self._sync_output()
        self.number, self.size, self.began_at = self.number + 1, 0, 0.0

    def sync(self) -> None:
        """Makes everything durable that was appended, and the names of new files."""
        self._sync_output()
        if self._created:
            sync_directory(self._layout.directory)

    def _sync_output(self) -> None:
        if self._output is not None:
            os.fsync(self._output)
            os.close(self._output)
            self._output = None

    def _open_output(self) -> int:
        path = self._format.part(self._layout, self.number)
        if not self.size:
            self._created = True
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        descriptor = open_committed(path, self.size)
        os.lseek(descriptor, self.size, os.SEEK_SET)
        return descriptor

    def _copy(self, piece: StoredPiece, output: int) -> None:
        source, offset, end = self._open_stored(piece.name), piece.offset, piece.offset + piece.size
        if os.fstat(source).st_size < end:
            raise _lost_piece()
        while offset < end:  # inside the kernel: the driver never sees the bytes
            copied = os.sendfile(output, source, offset, end - offset)
            if not copied:
                raise _lost_piece()
            offset += copied

    def _open_stored(self, name: str) -> int:
        if self._stored is None or self._stored[0] != name:
            if self._stored is not None:
                os.close(self._stored[1])
                self._stored = None
            try:
                self._stored = (name, os.open(self._scratch / name, os.O_RDONLY))
            except FileNotFoundError:
                raise _lost_piece() from None
        return self._stored[1]


def open_committed(path: Path, size: int) -> int:
    """Returns a descriptor for writing of a file in progress, cut to the ``size`` bytes that count. Raises
    TerminalError when they are not all there."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        raise _lost_bytes(path, 0, size) from None
    found = os.fstat(descriptor).st_size
    if found < size:
        os.close(descriptor)
        raise _lost_bytes(path, found, size)
    if found > size:
        os.ftruncate(descriptor, size)
    return descriptor


def _lost_bytes(path: Path, found: int, size: int) -> TerminalError:
    return TerminalError(
        f"{path} holds {found} bytes where {size} were committed",
        "something else removed or cut it; restore it, or copy the tables again into an empty directory",
    )


def _lost_piece() -> TransientError:
    return TransientError(
        "the output of a task is no longer in the scratch directory", "the batch is written again", Cause.TARGET
    )
