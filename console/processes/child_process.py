"""One child process, in a separate session: signals of the terminal do not reach it, so that the parent chooses when it stops.

Unless it should outlive the parent, the kernel sends it SIGTERM when the parent dies, however that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from pgsluice.console.processes.log_file import LogFile

_LIBC = ctypes.CDLL(None)
"""Loaded before any fork: a child that has not become its program yet must not load anything."""

_SET_PARENT_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run. ``name`` is for readers. ``environment`` is all that it gets, and can contain secrets; every
    user of the machine can see ``arguments``. ``output`` is a descriptor for standard output, None: into the log too.
    ``kept_open`` are other descriptors that the child holds as long as it lives. ``outlives_us``: it continues when the
    parent dies."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    log: LogFile
    output: int | None = None
    kept_open: tuple[int, ...] = ()
    outlives_us: bool = False


class ChildProcess:
    """A process that was started. ``log_start`` is where the log was then."""

    def __init__(self, command: Command, process: asyncio.subprocess.Process, log_start: int) -> None:
        self._command = command
        self._process = process
        self._log_start = log_start

    @classmethod
    async def start(cls, command: Command) -> Self:
        """Starts the child; call it in the main thread: with the thread that starts it, a child gets its SIGTERM.
        Raises OSError."""
        log_start, parent = command.log.size(), os.getpid()

        def end_with_parent() -> None:
            _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != parent:  # it was faster
                os._exit(-signal.SIGTERM)

        log = command.log.open()
        try:
            process = await asyncio.create_subprocess_exec(
                *command.arguments,
                env=dict(command.environment),
                stdin=subprocess.DEVNULL,
                stdout=log if command.output is None else command.output,
                stderr=log,
                start_new_session=True,
                pass_fds=command.kept_open,
                preexec_fn=None if command.outlives_us else end_with_parent,
            )
        finally:
            os.close(log)
        return cls(command, process, log_start)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Returns the exit code, negative for the signal that ended it."""
        return await self._process.wait()

    def stop(self) -> None:
        """Asks it to end after its current work. Nothing happens when it ended."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it and its session's processes, whatever they are doing."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def last_lines(self, count: int) -> list[str]:
        """Returns the last lines of its log, without earlier processes' lines in the file."""
        return self._command.log.last_lines(count, self._log_start)
