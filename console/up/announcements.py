"""Output of ``pgsluice up``: its own sentences on standard error, and the live screen or the logs of its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from rich.console import Console

from pgsluice.console.processes.child_process import Command
from pgsluice.console.processes.supervised_process import Ending
from pgsluice.console.watch.keyboard import reading_keys
from pgsluice.console.watch.live import QUIET, show_screen
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.errors import PgsluiceError

_EVERY_S = 1.0
_NAME_WIDTH = 10


class Announcements:
    """Sentences are kept back while the live screen is shown, and follow it."""

    def __init__(self) -> None:
        self._held: list[str] | None = None
        self._shows_logs = False

    def say(self, sentence: str) -> None:
        if self._held is not None:
            self._held.append(sentence)
            return
        with contextlib.suppress(OSError):  # the terminal, or the reader, is gone: that must not keep anything from ending
            sys.stderr.write(sentence + "\n")
            sys.stderr.flush()

    async def ask(self, question: str) -> bool:
        """Returns whether the answer is yes, as the empty one is; yes without a terminal."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        sys.stderr.write(f"{question} [Y/n] ")
        sys.stderr.flush()
        loop, answered, descriptor = asyncio.get_running_loop(), asyncio.Event(), sys.stdin.fileno()
        loop.add_reader(descriptor, answered.set)
        try:
            await answered.wait()
        finally:
            loop.remove_reader(descriptor)
        return os.read(descriptor, 1024).decode(errors="replace").strip().lower() in ("", "y", "yes")

    def show_end(self, ending: Ending) -> None:
        """Shows the last lines of a process that ended as it should not have, unless they were shown as they came."""
        if not self._shows_logs:
            for line in ending.last_lines:
                self._line(ending.name, line)

    @contextlib.asynccontextmanager
    async def showing(
        self, commands: Sequence[Command], status: StatusSettings, stop: Callable[[], object]
    ) -> AsyncIterator[None]:
        """Shows what the processes do while a block runs: the live screen on a terminal whose output is not shared,
        else their logs. The key q on the screen calls ``stop``."""
        has_screen = all(command.output is None for command in commands) and sys.stdout.isatty() and sys.stderr.isatty()
        self._shows_logs = not has_screen
        shown = asyncio.create_task(self._screen(commands, status, stop) if has_screen else self._logs(commands))
        try:
            yield
        finally:
            await cancel([shown])

    async def _screen(self, commands: Sequence[Command], status: StatusSettings, stop: Callable[[], object]) -> None:
        self._held = []
        telemetry.set_up(replace(status.log, level=QUIET))
        try:
            with reading_keys({"q": stop}):
                await show_screen(status, _EVERY_S, Console())
        except PgsluiceError as error:
            self.say(f"there is no screen: {error}")
        finally:
            telemetry.set_up(status.log)
            self._release()
        self._shows_logs = True
        await self._logs(commands)

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for sentence in held:
            self.say(sentence)

    async def _logs(self, commands: Sequence[Command]) -> None:
        """Shows every line, from now on, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for command in commands:
                group.create_task(self._log(command))

    async def _log(self, command: Command) -> None:
        async for line in command.log.follow():
            self._line(command.name, line)

    def _line(self, name: str, line: str) -> None:
        self.say(f"{name:<{_NAME_WIDTH}} | {line}")
