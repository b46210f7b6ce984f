"""A process that is kept running: started again after a transient failure, and ended after one that needs an operator.

It goes by exit codes (``shared.errors``): 0 is done; 75, and an end by a foreign signal, may be tried again; all else
would end the same way again.
"""

from __future__ import annotations

import asyncio
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass

from pgsluice.console.processes.child_process import ChildProcess, Command
from pgsluice.console.processes.log_file import last_sentence
from pgsluice.shared.errors import TransientError
from pgsluice.shared.process.retrying import Backoff, Pauses

PAUSES = Pauses(1.0, 60.0)
LAST_LINES = 15
"""Number of log lines shown when a process ended unexpectedly."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the last process of its kind: its exit code, its last message, and the end of its log."""

    name: str
    exit_code: int
    sentence: str
    last_lines: tuple[str, ...]


def may_start_again(exit_code: int) -> bool:
    return exit_code == TransientError.exit_code or exit_code < 0


def describe_exit(exit_code: int) -> str:
    """Completes "it ended"."""
    if exit_code >= 0:
        return f"with exit code {exit_code}"
    try:
        return f"by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"by signal {-exit_code}"


class SupervisedProcess:
    """``tell`` is called with a sentence whenever the process ends and will be started again."""

    def __init__(self, command: Command, tell: Callable[[str], None], pauses: Pauses = PAUSES) -> None:
        self.command = command
        self._tell = tell
        self._backoff = Backoff(pauses)
        self._stopping = asyncio.Event()
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """None while none runs."""
        return None if self._child is None else self._child.pid

    async def run(self) -> Ending:
        """Returns when it is over: it ended for good, or was stopped. Cancelled, it leaves the process alone."""
        while not self._stopping.is_set():
            child = await ChildProcess.start(self.command)
            self._child = child
            if self._stopping.is_set():
                child.stop()
            exit_code = await child.wait()
            self._child = None
            lines = child.last_lines(LAST_LINES)
            ending = Ending(self.command.name, exit_code, last_sentence(lines), tuple(lines))
            if self._stopping.is_set() or not may_start_again(exit_code) or self._is_unread():
                return ending
            await self._pause(ending)
        return Ending(self.command.name, 0, "", ())

    def _is_unread(self) -> bool:
        """Returns whether its output, pgsluice's standard output, has no reader any more: another process would end for
        that, too."""
        if self.command.output is None:
            return False
        poll = select.poll()
        poll.register(self.command.output, 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))

    async def _pause(self, ending: Ending) -> None:
        pause_s = self._backoff.next_pause_s()
        why = f": {ending.sentence}" if ending.sentence else ""
        self._tell(f"{ending.name} ended {describe_exit(ending.exit_code)}, and is started again in {pause_s:.1f} s{why}")
        try:
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        except TimeoutError:
            return

    def stop(self) -> None:
        """Asks the process to end after its current work; no other is started. ``run`` returns then."""
        self._stopping.set()
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """Kills the process at once; no other is started."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()
