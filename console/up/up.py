"""One run of ``pgsluice up``: what is started in which order, what ends it, and the end itself.

The broker is started first and ends last: a worker that finishes its batch and a replicator that confirms what it published need
it. Neither waits for the other, so both are started together and are asked to stop together.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgsluice.console.check.script import scripts
from pgsluice.console.processes.child_process import Command
from pgsluice.console.processes.supervised_process import Ending, SupervisedProcess, describe_exit
from pgsluice.console.up import local_broker
from pgsluice.console.up.announcements import Announcements
from pgsluice.console.up.equivalent_configuration import EquivalentConfiguration, equivalent_configuration
from pgsluice.console.up.first_check import first_check
from pgsluice.console.up.group_processes import group_commands
from pgsluice.console.up.local_broker import LocalBroker
from pgsluice.console.up.state_directory import StateDirectory, locked
from pgsluice.console.up.up_settings import UpSettings
from pgsluice.replicator.tasks import cancel
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.preflight.finding import Severity
from pgsluice.shared.process import stop_signals
from pgsluice.shared.process.private_file import write_private

INTERRUPTED_HARD = 130
"""The exit code when processes were killed because of a second interrupt."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The processes to run: a worker with ``sink``, configured by ``values`` and ``added``
    (``equivalent_configuration``). ``nats_server`` is the program of a private broker, "" for an existing one.
    ``asks``: at the first start the user is asked before it continues after a warning."""

    settings: UpSettings
    sink: str
    directory: Path
    nats_server: str
    values: Values
    added: Mapping[str, str]
    asks: bool

    def configuration(self) -> EquivalentConfiguration:
        """Returns the configuration of replicator and worker. A private broker must have begun to listen, or its
        address may become another."""
        broker = local_broker.options(self.directory) if self.nats_server else {}
        return equivalent_configuration(self.values, {**self.added, **broker})

    def status(self) -> StatusSettings:
        """Returns the settings by which the group is read, once the broker listens."""
        nats = self.settings.nats or local_broker.settings(self.directory)
        return StatusSettings(self.settings.group, self.settings.log, nats, self.settings.source)


def run(plan: Plan) -> int:
    """Returns the exit code when a signal stopped it, when all processes have ended, or when a process failed for good:
    then that process's. Raises PgsluiceError when the directory or the broker cannot be used."""
    with locked(plan.directory) as state:
        return asyncio.run(_run(plan, state))


async def _run(plan: Plan, state: StateDirectory) -> int:
    up, call_soon = Up(plan, state), asyncio.get_running_loop().call_soon_threadsafe
    with stop_signals.calling(functools.partial(call_soon, up.request_stop)):
        return await up.run()


class Up:
    """The processes of one ``up``."""

    def __init__(self, plan: Plan, state: StateDirectory) -> None:
        self._plan = plan
        self._state = state
        self._announcements = Announcements()
        self._say = self._announcements.say
        self._broker = LocalBroker(plan.nats_server, state, self._say) if plan.nats_server else None
        self._processes: list[SupervisedProcess] = []
        self._running: set[asyncio.Task[Ending]] = set()
        self._configuration = EquivalentConfiguration("", {})
        self._is_wanted = False
        self._stop = asyncio.Event()
        self._was_killed = False

    def request_stop(self) -> None:
        """Asks all processes to end after their current work. The second call kills them."""
        if self._stop.is_set():
            self._was_killed = True
            for process in self._processes:
                process.kill()
        elif self._running:
            self._say("stopping: current work is finished first (Ctrl-C again: at once)")
        self._stop.set()

    async def run(self) -> int:
        failure: Ending | None = None
        try:
            if await self._unless_stopped(self._prepare()) and self._is_wanted:
                failure = await self._run_group()
        finally:
            try:
                endings = await self._end_group()
            finally:
                if self._broker is not None:
                    await self._broker.stop()
        return self._exit_code(failure, endings)

    async def _prepare(self) -> None:
        """Prepares the broker, the configuration, the check. Raises PgsluiceError for an error that a user has to fix
        first."""
        if self._broker is not None:
            await self._broker.start()
        is_first = not self._state.configuration.exists()
        self._configuration = self._plan.configuration()
        write_private(self._state.configuration, self._configuration.text.encode())
        try:
            self._is_wanted = await self._pass_check(asks=is_first and self._plan.asks)
        finally:
            if is_first and not self._is_wanted:
                self._state.configuration.unlink()  # the next start is a first one again

    async def _pass_check(self, *, asks: bool) -> bool:
        """Returns whether to continue. Raises TerminalError when it cannot."""
        has_own_broker = self._broker is not None
        report = await first_check(self._state.configuration, self._configuration.variables, nats=not has_own_broker)
        errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
        for line in (*report.lines(), *scripts(report)) if errors or warnings else ():
            self._say(line)
        if errors:
            raise TerminalError("the check found errors", "fix them, by the SQL or the remedies above, and start again")
        return not (warnings and asks) or await self._announcements.ask("Continue as it is?")

    async def _run_group(self) -> Ending | None:
        """Runs the group until it must end. Returns the end of the process that ended it, None without one."""
        plan = self._plan
        commands = list(group_commands(plan.sink, self._state, self._configuration.variables))
        for command in commands:
            command.log.rotate()
        self._say(f"group {plan.settings.group}: replicator and worker {plan.sink} start; logs are in {self._state.path}")
        async with self._announcements.showing(commands, plan.status(), self.request_stop):
            self._start(commands)
            return await self._first_failure()

    def _start(self, commands: list[Command]) -> None:
        self._processes = [SupervisedProcess(command, self._say) for command in commands]
        self._running = {asyncio.create_task(process.run()) for process in self._processes}

    async def _first_failure(self) -> Ending | None:
        stopping = asyncio.create_task(self._stop.wait())
        broker = [self._broker.running] if self._broker is not None and self._broker.running is not None else []
        try:
            while self._running:
                watched = [*self._running, *broker]
                await asyncio.wait((*watched, stopping), return_when=asyncio.FIRST_COMPLETED)
                for task in watched:
                    if task.done() and (task in broker or task.result().exit_code != 0):
                        return task.result()
                self._running = {task for task in self._running if not task.done()}
                if stopping.done():
                    return None
        finally:
            stopping.cancel()
        return None

    async def _end_group(self) -> list[Ending]:
        """Ends the running processes; returns their ends."""
        self._stop.set()
        for process in self._processes:
            process.stop()
        return await asyncio.gather(*self._running)

    def _exit_code(self, failure: Ending | None, endings: list[Ending]) -> int:
        """Returns the exit code; reports the error, if any."""
        if self._was_killed:
            return INTERRUPTED_HARD
        for ending in filter(None, (failure, *endings)):
            if ending is failure or ending.exit_code != 0:
                self._announcements.show_end(ending)
                why = ending.sentence or f"see {self._state.log(ending.name).path}"
                self._say(f"pgsluice: the {ending.name} ended {describe_exit(ending.exit_code)}: {why}")
                return ending.exit_code if ending.exit_code > 0 else TransientError.exit_code
        return 0

    async def _unless_stopped(self, call: Coroutine[Any, Any, None]) -> bool:
        """Returns whether ``call`` was done before a stop was asked for; else it is cancelled."""
        calling, stopping = asyncio.create_task(call), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((calling, stopping), return_when=asyncio.FIRST_COMPLETED)
            if calling.done():
                await calling
            return calling.done()
        finally:
            await cancel([calling, stopping])
