"""The log file of a child process: its last message, and every new line."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from pgsluice.shared.process.private_file import OURS_ALONE

ROTATE_BYTES = 10_000_000
"""A file that is larger when its first process starts is put aside, over the one that was put aside before."""

_FOLLOW_INTERVAL_S = 0.2
_END_BYTES = 64 * 1024
"""Size of the file's end in which the last lines are searched."""

_SENTENCE = "pgsluice: "
"""Begin of ``telemetry.report_failure``'s last line of a text log."""


class LogFile:
    """A file that grows. Only this user may read it: the output of other programs in it may be private."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rotate(self) -> None:
        """Rotates a large file; call it while nothing writes."""
        if self.size() > ROTATE_BYTES:
            os.replace(self.path, self.path.with_name(self.path.name + ".1"))

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def open(self) -> int:
        """Returns a descriptor to append by; the caller closes it."""
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OURS_ALONE)

    def last_lines(self, count: int, since: int = 0) -> list[str]:
        """Returns the newest lines from byte ``since`` on."""
        size = self.size()
        if size <= since:
            return []
        with self.path.open("rb") as file:
            file.seek(max(since, size - _END_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]

    def read(self, start: int, most: int) -> bytes:
        """Returns up to ``most`` bytes from ``start`` on; none where there is no file."""
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(most)
        except FileNotFoundError:
            return b""

    async def follow(self) -> AsyncIterator[str]:
        """Yields each line that is written from the first ``anext`` on, indefinitely."""
        place, begun = self.size(), b""
        while True:
            if self.size() > place:
                with self.path.open("rb") as file:
                    file.seek(place)
                    *lines, begun = (begun + file.read()).split(b"\n")
                    place = file.tell()
                for line in lines:
                    yield line.decode(errors="replace")
            await asyncio.sleep(_FOLLOW_INTERVAL_S)


def last_sentence(lines: list[str]) -> str:
    """Returns the message of the last line of a pgsluice log, in either format; "" without one."""
    for line in reversed(lines):
        if line.startswith(_SENTENCE):
            return line.removeprefix(_SENTENCE)
        if line.startswith("{") and '"exit_code"' in line:
            return _message(line)
    return ""


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError):
        return ""
