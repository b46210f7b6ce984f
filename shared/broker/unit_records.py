"""The desired state of each unit of a group, and its process's report, in the state bucket.

A *unit* is a process of a group: its replicator, or one of its workers. Commands write the desired state under
``desired.<unit>``; the unit's process watches that key, and writes its own state under ``process.<unit>``. The
displayed state (running, failing, paused, …) is derived from these two, from the lease and from the ledger; it is
stored nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.broker.wishes import WishKey
from pgsluice.shared.errors import Cause
from pgsluice.shared.process.pulse import Activity

REPLICATOR_UNIT = "replicator"

_WORKER_UNIT = "worker."
_DESIRED = "desired."
_PROCESS = "process."


class Desired(StrEnum):
    """The desired state of a unit. STOPPED: its process ends with 0, and a supervisor that starts it again sees it end
    again."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class DesiredRecord:
    """The record under ``desired.<unit>``; a missing one means RUNNING. ``by`` and ``reason`` are for readers.
    ``paused_when_started``: the unit is STOPPED and paused, which are two wishes, and pauses when it may be started
    again."""

    state: Desired
    reason: str = ""
    by: str = ""
    at: TimeText = ""
    paused_when_started: bool = False


@dataclass(frozen=True, slots=True)
class WaitRecord:
    """A process's current wait: ``shared.process.pulse.Wait``. ``next_attempt_at`` is "" while nothing is planned."""

    cause: Cause
    reason: str
    since: TimeText
    next_attempt_at: TimeText = ""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The report of a unit's process, under ``process.<unit>``: written when it changes, and every ALIVE_INTERVAL_S.

    ``acknowledged`` is the revision of ``desired.<unit>`` that it applied (0: none). ``progressed_at`` is when its work
    moved last; ``idle``: there was nothing to do then. ``exit_code``, ``fact`` and ``remedy`` are those it ended with;
    unset while it lives, and if it was killed. ``is_finished``: it ended because it had done all that it was started
    for.
    """

    host: str
    pid: int
    started_at: TimeText
    updated_at: TimeText
    activity: Activity
    progressed_at: TimeText = ""
    idle: bool = True
    wait: WaitRecord | None = None
    acknowledged: int = 0
    version: str = ""
    exit_code: int | None = None
    fact: str = ""
    remedy: str = ""
    is_finished: bool = False


NOTHING_DESIRED = DesiredRecord(Desired.RUNNING)
"""The state of a unit without a desired state."""

ALIVE_INTERVAL_S = 10.0
"""A process whose record is three times older than that has ended, or is frozen, or has no broker."""


def worker_unit(worker: str) -> str:
    return _WORKER_UNIT + worker


def worker_of_unit(unit: str) -> str | None:
    """Returns the worker's name; None for the replicator."""
    return unit.removeprefix(_WORKER_UNIT) if unit.startswith(_WORKER_UNIT) else None


def desired_key(unit: str) -> str:
    return _DESIRED + unit


def desired_wish(unit: str) -> WishKey[DesiredRecord]:
    return WishKey(desired_key(unit), NOTHING_DESIRED)


def process_key(unit: str) -> str:
    return _PROCESS + unit


def unit_of_key(key: str) -> str | None:
    """Returns the unit whose desired state or process the bucket has under ``key``; None for any other key."""
    for prefix in (_DESIRED, _PROCESS):
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return None
