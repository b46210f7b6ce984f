"""Decides whether to start or stop a unit's process: pure, from the desired state and the last process's end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pgsluice.console.processes.supervised_process import may_start_again
from pgsluice.shared.broker.unit_records import Desired


class RunnerStep(StrEnum):
    """A runner's action for a unit. AGAIN: it is started after a pause that grows. RENEW: its process is asked to end,
    because it runs an older document; the next one is started then."""

    LEAVE = "leave"
    START = "start"
    AGAIN = "again"
    RENEW = "renew"


@dataclass(frozen=True, slots=True)
class StartedWith:
    """A process's start parameters: the revisions of the group's document and of the unit's desired state."""

    document: int
    desired: int


@dataclass(frozen=True, slots=True)
class UnitCase:
    """``wanted``: the document names the unit. ``started`` is None for a unit that was never started here.
    ``exit_code`` is the last process's, None if unknown; ``is_finished``: it did all that it was started for."""

    wanted: bool
    desired: Desired
    now: StartedWith
    is_running: bool
    started: StartedWith | None = None
    exit_code: int | None = None
    is_finished: bool = False


def next_step(case: UnitCase) -> RunnerStep:
    """Returns the action. A unit applies its desired state itself; a runner only ensures that a process exists which
    can."""
    if case.is_running:
        is_older = case.started is not None and case.started.document != case.now.document
        return RunnerStep.RENEW if case.wanted and is_older else RunnerStep.LEAVE
    if not case.wanted or case.desired is Desired.STOPPED:
        return RunnerStep.LEAVE
    if case.started is None or case.started != case.now:
        return RunnerStep.START
    if case.exit_code == 0:
        return RunnerStep.LEAVE if case.is_finished else RunnerStep.AGAIN
    if case.exit_code is None or may_start_again(case.exit_code):
        return RunnerStep.AGAIN
    return RunnerStep.LEAVE
