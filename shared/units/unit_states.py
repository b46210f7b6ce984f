"""The state of each process of a group: derived from its report, its lease, the ledger and its desired state.

Nothing here is stored, so it cannot disagree with the facts. A state comes with its reason and with what a reader can
do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from pgsluice.shared.broker.unit_records import (
    ALIVE_INTERVAL_S,
    NOTHING_DESIRED,
    Desired,
    DesiredRecord,
    ProcessRecord,
    worker_of_unit,
)
from pgsluice.shared.errors import Cause
from pgsluice.shared.process.pulse import Activity

LONGEST_SILENCE_S = 3 * ALIVE_INTERVAL_S
"""Age at which a process whose record was not written again has ended, is frozen, or has no broker."""
STUCK_S = 60.0
"""A process that has something to do and has not moved for so long is not well."""
SILENT_WORKER_S = 86_400.0
"""A worker that was not heard of for a day is worth a warning: messages are kept for it."""

_RESUME = "'pgsluice resume' lets it continue"
_START = "'pgsluice start', then start its process, or let its supervisor do so"
_RESTART = "its supervisor starts it again; without one, start it"


class State(StrEnum):
    """A unit's state, derived from the desired and the actual one."""

    DRAFT = "draft"
    """Never started."""
    STARTING = "starting"
    COPYING = "copying"
    """Running, while a table waits for its copy or is read."""
    RUNNING = "running"
    PAUSING = "pausing"
    """Must pause, and is not resting yet: the current batch is finished first."""
    PAUSED = "paused"
    FAILING = "failing"
    """Alive, and it waits or retries; or it will be started again. It recovers automatically."""
    FAILED = "failed"
    """Ended, and needs an operator."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    """Did what it was started for, as with --until-sequence, and ended."""
    UNKNOWN = "unknown"
    """Stopped reporting: killed, frozen, or without a broker."""


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """The facts about a unit. ``process_age_s`` is the age of its record's last write, by the broker's clock;
    ``holds_lease`` whether a process holds the worker's lease now (a replicator has none); ``is_copying`` whether
    tables wait for their copy, or have rows that it has not applied; ``was_started`` whether the group knows it in any
    other way."""

    unit: str
    desired: DesiredRecord = NOTHING_DESIRED
    revision: int = 0
    process: ProcessRecord | None = None
    process_age_s: float = 0.0
    holds_lease: bool = False
    is_copying: bool = False
    was_started: bool = False


@dataclass(frozen=True, slots=True)
class UnitState:
    """``since`` is "" where it is not known. ``fact`` and ``remedy`` are sentences for users, "" if there is nothing to
    report. ``cause`` is what a failing unit waits for, ``next_attempt_at`` when it tries again."""

    unit: str
    state: State
    since: str = ""
    fact: str = ""
    remedy: str = ""
    cause: Cause | None = None
    next_attempt_at: str = ""

    @property
    def name(self) -> str:
        """The unit's name for users."""
        return worker_of_unit(self.unit) or self.unit


def unit_state(facts: UnitFacts) -> UnitState:
    """Pure."""
    process = facts.process
    if process is None:
        return _untold(facts)
    if process.exit_code is not None:
        return _ended(facts, process, process.exit_code)
    if not is_alive(facts):
        return _silent(facts, process)
    match facts.desired.state:
        case Desired.RUNNING:
            return _running(facts, process)
        case Desired.PAUSED:
            return _pausing(facts, process)
        case Desired.STOPPED:
            return _waiting(facts, process, State.STOPPING, facts.desired.at)
        case unreachable:
            assert_never(unreachable)


def is_alive(facts: UnitFacts) -> bool:
    """Returns whether the unit's process seems to live. A worker's lease ends sooner than its record grows old."""
    if facts.process is None or facts.process.exit_code is not None:
        return False
    return facts.process_age_s <= LONGEST_SILENCE_S and (facts.holds_lease or worker_of_unit(facts.unit) is None)


def _untold(facts: UnitFacts) -> UnitState:
    """Returns the state of a unit without a report: it has just begun, or is of an earlier version, or never was."""
    if facts.holds_lease:
        return UnitState(facts.unit, State.STARTING)
    if facts.desired.state is Desired.STOPPED:
        return _wanted(facts, State.STOPPED, _START)
    if facts.was_started:
        return UnitState(facts.unit, State.UNKNOWN, fact="its process has not reported", remedy=_RESTART)
    return UnitState(facts.unit, State.DRAFT, fact="it was never started")


def _ended(facts: UnitFacts, process: ProcessRecord, exit_code: int) -> UnitState:
    if facts.desired.state is Desired.STOPPED and exit_code in (0, 75):
        return _wanted(facts, State.STOPPED, _START)
    if exit_code == 0:
        if process.is_finished:
            return UnitState(facts.unit, State.FINISHED, process.updated_at)
        return UnitState(facts.unit, State.STOPPED, process.updated_at, "its process was stopped", "start it again")
    if exit_code == 75:
        return UnitState(facts.unit, State.FAILING, process.updated_at, process.fact, process.remedy or _RESTART)
    return UnitState(facts.unit, State.FAILED, process.updated_at, process.fact, process.remedy)


def _silent(facts: UnitFacts, process: ProcessRecord) -> UnitState:
    """A process that was killed could write nothing."""
    if facts.desired.state is Desired.STOPPED and not facts.holds_lease:
        return _wanted(facts, State.STOPPED, _START)
    fact = f"no report of process {process.pid} on {process.host} since {process.updated_at[:19]}"
    remedy = f"it was killed, is frozen, or cannot reach NATS: check its machine; {_RESTART}"
    worker = worker_of_unit(facts.unit)
    if worker is not None and facts.process_age_s > SILENT_WORKER_S:
        remedy = f"messages are kept for it: {forget_advice(worker)}"
    return UnitState(facts.unit, State.UNKNOWN, process.updated_at, fact, remedy)


def forget_advice(worker: str) -> str:
    """Returns the advice how to remove a worker that does not come back, and the cost."""
    cost = (
        "its position is removed permanently, possibly with changes that it has not applied: started again, it needs a new copy"
    )
    return f"if it does not come back, 'pgsluice forget --worker {worker}'; {cost}"


def _running(facts: UnitFacts, process: ProcessRecord) -> UnitState:
    match process.activity:
        case Activity.STARTING | Activity.PAUSED:
            return _failing(facts, process) or UnitState(facts.unit, State.STARTING, process.started_at)
        case Activity.ENDING:
            return UnitState(facts.unit, State.STOPPING, process.updated_at)
        case Activity.WORKING:
            state = State.COPYING if facts.is_copying else State.RUNNING
            return _failing(facts, process) or UnitState(facts.unit, state, process.started_at)
        case unreachable:
            assert_never(unreachable)


def _pausing(facts: UnitFacts, process: ProcessRecord) -> UnitState:
    if process.activity is Activity.ENDING:
        return UnitState(facts.unit, State.STOPPING, process.updated_at)
    if process.activity is Activity.PAUSED and process.acknowledged >= facts.revision:
        return _wanted(facts, State.PAUSED, _RESUME)
    return _waiting(facts, process, State.PAUSING, facts.desired.at)


def _wanted(facts: UnitFacts, state: State, remedy: str) -> UnitState:
    """Returns the state that was requested."""
    desired = facts.desired
    by = f"by {desired.by}" if desired.by else ""
    return UnitState(facts.unit, state, desired.at, ": ".join(part for part in (by, desired.reason) if part), remedy)


def _waiting(facts: UnitFacts, process: ProcessRecord, state: State, since: str) -> UnitState:
    """Returns the state of a unit that may be waiting."""
    wait = process.wait
    if wait is None:
        return UnitState(facts.unit, state, since)
    return UnitState(facts.unit, state, since, wait.reason, "", wait.cause, wait.next_attempt_at)


def _failing(facts: UnitFacts, process: ProcessRecord) -> UnitState | None:
    """Returns None for a process that is well."""
    if process.wait is not None:
        return _waiting(facts, process, State.FAILING, process.wait.since)
    if not process.idle and process.progressed_at and _seconds(process.progressed_at, process.updated_at) > STUCK_S:
        fact = f"it has something to do, and nothing has moved since {process.progressed_at[:19]}"
        return UnitState(facts.unit, State.FAILING, process.progressed_at, fact, "read its log")
    return None


def _seconds(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)) / timedelta(seconds=1)
