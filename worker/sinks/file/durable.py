"""What an error of the file system means for the worker.

Writing files so that what was written is there after a crash of the machine too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""EFBIG: a process may be limited to files smaller than the disk has room for."""

_MAY_PASS = frozenset(
    {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT}
)


@contextmanager
def file_errors(directory: Path, doing: str) -> Iterator[None]:
    """Raises what an OSError inside means. ``doing`` completes "… failed while"."""
    try:
        yield
    except OSError as error:
        raise file_error(error, directory, doing) from None


def file_error(error: OSError, directory: Path, doing: str) -> PgsluiceError:
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.errno in NO_SPACE:
        return TransientError(
            f"there is no room in {directory} ({reason}, while {doing})",
            "make room there; the worker waits, and nothing of the batch stays half-written",
        )
    if error.errno in _MAY_PASS:
        return TransientError(f"{directory} failed ({reason}, while {doing})", "the batch is written again")
    return TerminalError(
        f"{directory} cannot be used ({reason}, while {doing})",
        "let the worker's user write there, or give another file-output-dir; the worker goes on where it was",
    )


def write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Makes what was created, renamed and removed in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
