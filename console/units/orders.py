"""``pgsluice pause``, ``resume``, ``stop``, ``start``: the desired state of units is stored, and they apply it.

Each is idempotent: an unchanged state is not written again. An order reaches a unit that does not run when it is
started.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import reduce
from typing import assert_never

from pgsluice.console.units.room import say_room, say_wal
from pgsluice.shared.broker.bucket import Entry, StateBucket, opened_bucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.unit_records import (
    REPLICATOR_UNIT,
    Desired,
    DesiredRecord,
    desired_wish,
    worker_of_unit,
    worker_unit,
)
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.process.user import user_name
from pgsluice.shared.units.found_units import known_units, read_units
from pgsluice.shared.units.unit_states import State, UnitFacts, UnitState, is_alive, unit_state
from pgsluice.shared.units.unit_wait import UnitWait
from pgsluice.shared.wire.names import GroupNames

_STAYS = "the request stays stored, and the process executes it when it is started again"

NOT_THERE_YET = 75
"""The exit code when units are not in the state that is wanted when the wait is over."""


class UnitVerb(StrEnum):
    """The verb of an order. A pause and a stop are separate: only RESUME lifts a pause, and only START lifts a stop."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    START = "start"


@dataclass(frozen=True, slots=True)
class UnitOrder:
    """``workers`` are names, () for all. ``source``: the replicator too; what is resumed or started without naming workers is
    everything."""

    verb: UnitVerb
    workers: tuple[str, ...] = ()
    source: bool = False
    reason: str = ""
    wait_s: float | None = None


def desired_after(verb: UnitVerb, before: DesiredRecord) -> DesiredRecord:
    """Returns the desired state of a unit after the order: each verb undoes only its opposite."""
    is_stopped = before.state is Desired.STOPPED
    is_paused = before.state is Desired.PAUSED or before.paused_when_started
    match verb:
        case UnitVerb.PAUSE:
            is_paused = True
        case UnitVerb.RESUME:
            is_paused = False
        case UnitVerb.STOP:
            is_stopped = True
        case UnitVerb.START:
            is_stopped = False
        case unreachable:
            assert_never(unreachable)
    state = Desired.STOPPED if is_stopped else Desired.PAUSED if is_paused else Desired.RUNNING
    return replace(before, state=state, paused_when_started=is_stopped and is_paused)


def chosen_units(order: UnitOrder, units: Sequence[str]) -> list[str]:
    """Returns the existing units among them, sorted as they should stop: the replicator first. Raises UsageError for an
    unknown worker."""
    unknown = [worker for worker in order.workers if worker_unit(worker) not in units]
    if unknown:
        workers = [worker for unit in units if (worker := worker_of_unit(unit)) is not None]
        there = f"its workers are: {', '.join(workers)}" if workers else "no worker has ever run"
        raise UsageError(f"the group has no worker {unknown[0]!r}", there)
    brings_back = order.verb in (UnitVerb.RESUME, UnitVerb.START)
    chosen = [REPLICATOR_UNIT] if order.source or (brings_back and not order.workers) else []
    named = [worker_unit(worker) for worker in order.workers] or [unit for unit in units if unit != REPLICATOR_UNIT]
    return chosen + named


def run(settings: StatusSettings, order: UnitOrder) -> int:
    """Writes to standard output and returns the exit code. Raises UsageError for a group or worker that there is not,
    TerminalError when a unit cannot obey any more, TransientError when NATS does not answer."""
    return asyncio.run(_order(settings, order))


async def _order(settings: StatusSettings, order: UnitOrder) -> int:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice {order.verb} {names.group}") as client:
        bucket = await opened_bucket(client, names)
        units = chosen_units(order, await known_units(bucket))
        if not units:
            raise UsageError(f"group {names.group!r} has no worker", "start one first, or give --source for the replicator")
        for unit in units:
            await write_order(bucket, unit, (order.verb,), who(), order.reason)
        error = None if order.wait_s is None else await _follow(bucket, units, order)
        if error is not None and not await bucket.exists():
            raise error
        facts = await read_units(bucket, units, await Ledger(bucket).load_snapshot())
        _say(_outcome(facts, order))
        if order.verb is UnitVerb.PAUSE:
            _say(await say_room(ChangeStream(client, names)))
    if order.verb in (UnitVerb.PAUSE, UnitVerb.STOP) and order.source:
        _say(await say_wal(settings.source, names))
    if error is not None:
        raise error
    return NOT_THERE_YET if order.wait_s is not None and not all(map(is_obeyed, facts)) else 0


def _say(lines: Iterator[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


async def write_order(bucket: StateBucket, unit: str, verbs: Iterable[UnitVerb], by: str, reason: str) -> Entry[DesiredRecord]:
    """Writes the order and returns the desired state then, with revision 0 when none was ever written. Writes nothing
    when that state is desired already."""

    def changed(before: DesiredRecord) -> DesiredRecord:
        after = reduce(lambda desired, verb: desired_after(verb, desired), verbs, before)
        return after if after.state is before.state else replace(after, reason=reason, by=by, at=datetime.now(UTC).isoformat())

    return await desired_wish(unit).change(bucket, changed)


def is_obeyed(facts: UnitFacts) -> bool:
    """Returns whether the unit has acknowledged what is desired of it, and is in that state."""
    state, process = unit_state(facts).state, facts.process
    match facts.desired.state:
        case Desired.RUNNING:
            acknowledged = process is not None and process.acknowledged >= facts.revision
            return acknowledged and state in (State.RUNNING, State.COPYING, State.FINISHED)
        case Desired.PAUSED:
            return state is State.PAUSED
        case Desired.STOPPED:
            return state is State.STOPPED
        case unreachable:
            assert_never(unreachable)


async def _follow(bucket: StateBucket, units: Sequence[str], order: UnitOrder) -> TerminalError | None:
    """Returns None when all units have obeyed, or the wait is over; otherwise the error of a unit that can no longer
    obey."""
    ledger = Ledger(bucket)

    async def look() -> Sequence[str] | None:
        facts = await read_units(bucket, units, await ledger.load_snapshot())
        for each in facts:
            _check_holds(each, order)
        return [each.unit for each in facts if not is_obeyed(each)] or None

    try:
        await UnitWait(bucket, undone="and has not obeyed", stays=_STAYS, wait_s=order.wait_s).until(look)
    except TerminalError as error:
        return error
    return None


def _check_holds(facts: UnitFacts, order: UnitOrder) -> None:
    """Raises TerminalError when the opposite was requested since. (A forgotten unit has no desired state.)"""
    desired = facts.desired
    if facts.process is not None and desired != desired_after(order.verb, desired):
        by = f" by {desired.by}" if desired.by else ""
        raise TerminalError(
            f"the {_name(facts)} has the desired state {desired.state} now: another request{by} came during the wait",
            f"'pgsluice {order.verb}' sends the request again",
        )


def _outcome(facts: Sequence[UnitFacts], order: UnitOrder) -> Iterator[str]:
    for each in facts:
        state = unit_state(each)
        yield f"{_name(each)}: {_sentence(each, state, order)}"


def _name(facts: UnitFacts) -> str:
    worker = worker_of_unit(facts.unit)
    return "replicator" if worker is None else f"worker {worker}"


def _sentence(facts: UnitFacts, state: UnitState, order: UnitOrder) -> str:
    if facts.desired != desired_after(order.verb, facts.desired):  # another client was faster
        return f"{state.state}, because its desired state is now {facts.desired.state}"
    if order.verb in (UnitVerb.PAUSE, UnitVerb.RESUME) and facts.desired.state is Desired.STOPPED:
        return "its desired state is stopped: 'pgsluice start'"
    if order.verb is UnitVerb.START and facts.desired.state is Desired.PAUSED:
        return "its desired state is paused: 'pgsluice resume'"
    if is_obeyed(facts):
        return str(state.state)
    if not is_alive(facts):
        return f"{_when_started(facts)} (now: {state.state})"
    held_up = f": {state.fact}" if state.fact else ""
    return f"{state.state}, and not yet {_goal(facts.desired.state)}{held_up}"


def _when_started(facts: UnitFacts) -> str:
    match facts.desired.state:
        case Desired.RUNNING:
            return "its process has ended: a supervisor starts it again, or you do"
        case Desired.PAUSED:
            return "its process does not run; it will rest when it is started"
        case Desired.STOPPED:
            return "its process does not run; one that is started ends at once"
        case unreachable:
            assert_never(unreachable)


def _goal(desired: Desired) -> str:
    return {Desired.RUNNING: "running", Desired.PAUSED: "paused", Desired.STOPPED: "stopped"}[desired]


def who() -> str:
    """Returns the author of a command, for readers."""
    return f"{user_name()}@{socket.gethostname()}"
