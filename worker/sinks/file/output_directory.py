"""The output directory: the names of its files, its errors, and durable writes.

    orders.file.0000000012.jsonl         finished: never touched again
    orders.file.0000000013.jsonl.part    in progress: the position file holds its valid length, the rest may be cut off
    orders.file.position                 the position file
    .orders.file.lock, .orders.file.scratch-…    pgsluice's own

``orders`` is the group, ``file`` the worker; their names hold no dot, so the workers that share a directory never meet.
(The sink that replays a worker's dead letters is called ``file.replay``, and no number looks like that.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pgsluice.shared.errors import Cause, PgsluiceError, TerminalError, TransientError

PART = ".part"
READY = ".ready"
"""Suffix next to a part that is given to readers in several steps, during the last of them."""


class FileFormat(Protocol):
    @property
    def suffix(self) -> str:
        """Names it in file names and in the position file."""
        ...

    def part(self, layout: Layout, number: int) -> Path:
        """Returns the file in progress of this number."""
        ...

    def finish(self, layout: Layout, number: int) -> None:
        """Gives the part, which is complete and synced, to the readers, durably. May be called again for the same part, after
        a crash at any moment of the first call."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of one worker's files in ``directory``."""

    directory: Path
    prefix: str

    @property
    def position(self) -> Path:
        return self.directory / f"{self.prefix}.position"

    def name(self, number: int, suffix: str) -> str:
        return f"{self.prefix}.{number:010d}{suffix}"

    def part_numbers(self, suffix: str) -> list[int]:
        """Returns the numbers of parts in progress and of parts to be finished."""
        pattern = re.compile(re.escape(self.prefix) + r"\.(\d{10})" + re.escape(suffix) + rf"(?:{PART}|{READY})")
        found = (pattern.fullmatch(name.removeprefix(".")) for name in os.listdir(self.directory))
        return sorted(int(match[1]) for match in found if match)

    def holds_files(self) -> bool:
        """Returns whether the worker has ever written here."""
        pattern = re.compile(r"\.?" + re.escape(self.prefix) + r"\.\d{10}\..+")
        return any(pattern.fullmatch(name) for name in os.listdir(self.directory)) or any(self._in_tables())

    def finished_from(self, number: int) -> str | None:
        """Returns the name of a finished file of that number or a later one; None without one."""
        pattern = re.compile(re.escape(self.prefix) + r"\.(\d{10})[.-].+")
        for name in (*os.listdir(self.directory), *(path.name for path in self._in_tables())):
            found = None if name.endswith((PART, READY)) else pattern.fullmatch(name)
            if found is not None and int(found[1]) >= number:
                return name
        return None

    def _in_tables(self) -> Iterator[Path]:
        return self.directory.glob(f"*/{self.prefix}.[0-9]*")

    @contextmanager
    def locked(self, waits: Callable[[], None] = lambda: None) -> Iterator[bool]:
        """Locks out other processes of the same worker. Waits for a running one, after calling ``waits``; yields
        whether it did. The lock of a dead process is released."""
        descriptor = os.open(self.directory / f".{self.prefix}.lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_waited = False
            except BlockingIOError:
                waits()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                has_waited = True
            yield has_waited
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class LineFormat:
    """JSON lines: a finished file is the part under its final name."""

    suffix: str

    def part(self, layout: Layout, number: int) -> Path:
        return layout.directory / (layout.name(number, self.suffix) + PART)

    def finish(self, layout: Layout, number: int) -> None:
        self.part(layout, number).rename(layout.directory / layout.name(number, self.suffix))
        sync_directory(layout.directory)


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
            Cause.DISK_FULL,
        )
    if error.errno in _MAY_PASS:
        return TransientError(f"{directory} failed ({reason}, while {doing})", "the batch is written again", Cause.TARGET)
    return TerminalError(
        f"{directory} cannot be used ({reason}, while {doing})",
        "let the worker's user write there, or give another file-output-dir; the worker continues from its position",
    )


def is_one_in_both_cases(directory: Path) -> bool:
    """Returns whether the file system treats two names there that differ in case as one, as far as existing files show
    it. Creates nothing."""
    for name in os.listdir(directory):
        other = name.swapcase()
        if other != name and os.path.exists(directory / other):
            return os.path.samefile(directory / name, directory / other)
    return False


def in_one_case(name: str) -> str:
    """Returns one spelling for names that such a file system treats as one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def sync_directory(directory: Path) -> None:
    """Makes what was created, renamed and removed in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
