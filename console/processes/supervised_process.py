"""A process that is kept running: started again after what may pass, and over after what needs a person.

It goes by exit codes (``shared.errors``): 0 is done; 75, and an end by a signal that we did not send, may be tried again; all
else would end the same way again.
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
"""Of a log, shown to people when a process ended that should not have."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the last process of its kind ended: its exit code, the sentence it left, and the end of its log."""

    name: str
    exit_code: int
    sentence: str
    last_lines: tuple[str, ...]


def may_start_again(exit_code: int) -> bool:
    return exit_code == TransientError.exit_code or exit_code < 0


def describe_exit(exit_code: int) -> str:
    """Behind "it ended"."""
    if exit_code >= 0:
        return f"with exit code {exit_code}"
    try:
        return f"by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"by signal {-exit_code}"


class SupervisedProcess:
    """``tell`` is given a sentence whenever the process ends and is to be started again."""

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
        """Whether nobody reads what it writes to our standard output any more: another process would end for that, too."""
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
        """Asks the process to end what it has in hand; no other is started. ``run`` returns then."""
        self._stopping.set()
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """The same at once."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()
