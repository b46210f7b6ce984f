"""A unit's place on this machine: the lock that its process holds, its start parameters, its configuration and its log.

The lock is an open file that the process inherits and no other process keeps, so it is free exactly when the process
has ended, whichever server started it. It is taken before the process is made: no two can be.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from pgsluice.console.processes.log_file import LogFile
from pgsluice.console.runner.unit_wish import StartedWith
from pgsluice.shared.broker.record import MalformedError, decode
from pgsluice.shared.process.private_file import OURS_ALONE, write_private


@dataclass(frozen=True, slots=True)
class LastProcess:
    """``pid`` is 0 until the process exists. ``exit_code`` is None while it lives, and if its end was not observed."""

    started: StartedWith
    pid: int = 0
    exit_code: int | None = None


class UnitPlace:
    """The place of one unit, in ``folder``, which is the group's."""

    def __init__(self, folder: Path, unit: str) -> None:
        self._folder = folder
        self._unit = unit
        self.log = LogFile(folder / f"{unit}.log")

    @property
    def configuration(self) -> Path:
        return self._folder / f"{self._unit}.yaml"

    @property
    def last(self) -> LastProcess | None:
        """None before the first; also where what is written is of another version."""
        try:
            return decode(LastProcess, self._last_path.read_bytes())
        except (FileNotFoundError, MalformedError, orjson.JSONDecodeError):
            return None

    def note_started(self, started: StartedWith, pid: int = 0) -> None:
        """Notes the start before the process exists, and again with its number."""
        write_private(self._last_path, orjson.dumps(LastProcess(started, pid)))

    def note_ended(self, exit_code: int) -> None:
        last = self.last
        if last is not None:
            write_private(self._last_path, orjson.dumps(replace(last, exit_code=exit_code)))

    def take(self) -> int | None:
        """Returns the descriptor of the lock, for the process to hold: the caller closes it. None while a process
        lives."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / f"{self._unit}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    @property
    def is_running(self) -> bool:
        """Returns whether a process of the unit lives, whichever server started it."""
        descriptor = self.take()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    @property
    def _last_path(self) -> Path:
        return self._folder / f"{self._unit}.json"
