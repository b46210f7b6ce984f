"""Waiting for what units of a group have yet to do: one way for every command with ``--wait``.

A wait ends in one of three ways: the units have done what the command waits for; the deadline has passed; or the units
can no longer do it, which ends a wait at once:

- a unit failed: it ended with an error for an operator, and its record holds it;
- the replicator must not continue (``shared.broker.halt``);
- a unit was forgotten, or the group was dropped.

A unit that merely does not run may be started again at any time. So the command waits for a unit that is stopped,
paused, killed, or ended with 75 until the deadline, and names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.halt import read_halt
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, Desired, worker_of_unit
from pgsluice.shared.errors import PgsluiceError, TerminalError
from pgsluice.shared.units.found_units import read_units
from pgsluice.shared.units.unit_states import State, UnitFacts, UnitState, is_alive, unit_state

LOOK_INTERVAL_S = 0.25

STAND_BY_S = 2.0
"""Within that time a stand-by of a failed process reports, and is the unit then."""
START_S = 15.0
"""Within that time a new process of the unit reports, if the failed one has not received the request to run."""

Look = Callable[[], Awaitable[Sequence[str] | None]]
"""Returns None once the units have done what the command waits for; until then the units that have yet to do their
part, () while none is known. May raise PgsluiceError if it detects that they no longer can."""

log = telemetry.logger(__name__)


class UnitWait:
    """One wait. It prints on standard error the units that it waits for and their states, whenever that changes.

    ``undone`` ends a sentence about a unit that has failed ("and has not applied the rows"); ``stays`` follows the
    remedy for the unit, and states the outcome of the order. ``wait_s`` is the longest time, None for as long as it
    takes.
    """

    def __init__(self, bucket: StateBucket, *, undone: str, stays: str, wait_s: float | None) -> None:
        self._bucket = bucket
        self._ledger = Ledger(bucket)
        self._undone = undone
        self._stays = stays
        self._deadline = None if wait_s is None else time.monotonic() + wait_s
        self._told: list[tuple[str, State]] | None = None
        self._seen: set[str] = set()
        self._lost_since: dict[str, float] = {}
        """Units that have failed or were forgotten."""

    async def until(self, look: Look) -> list[UnitState] | None:
        """Returns None once ``look`` does, and the units that have yet to do their part when the deadline has passed. Raises
        TerminalError when they no longer can, TransientError when NATS does not answer, and what ``look`` raises."""
        while True:
            is_late = self._deadline is not None and time.monotonic() >= self._deadline
            left = await self._look(look, is_late=is_late)
            if left is None or is_late:
                return left
            self._tell(left)
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _look(self, look: Look, *, is_late: bool) -> list[UnitState] | None:
        """Checks the group last: one that was dropped meanwhile seems to have nothing left to do, or to be unknown."""
        try:
            left = await look()
            facts = [] if left is None else await read_units(self._bucket, left, await self._ledger.load_snapshot())
        except PgsluiceError:
            await self._check_group()
            raise
        await self._check_group()
        for each in facts:
            await self._check(each, is_late=is_late)
        return None if left is None else [unit_state(each) for each in facts]

    async def _check_group(self) -> None:
        if not await self._bucket.exists():
            raise TerminalError(f"group '{self._group}' was dropped", "the request is removed too")

    async def _check(self, facts: UnitFacts, *, is_late: bool) -> None:
        """Raises TerminalError when the unit can do nothing more."""
        found = unit_state(facts)
        is_forgotten = found.state is State.DRAFT and facts.unit in self._seen
        if found.state is not State.DRAFT:
            self._seen.add(facts.unit)
        if not is_forgotten and found.state is not State.FAILED:
            self._lost_since.pop(facts.unit, None)
            if facts.unit == REPLICATOR_UNIT and not is_alive(facts):
                await self._check_halt()
        elif self._is_settled(facts) or is_late:
            raise self._forgotten(facts.unit) if is_forgotten else self._failed(facts.unit, found.fact, found.remedy)

    async def _check_halt(self) -> None:
        halt = await read_halt(self._bucket)
        if halt is not None:
            error = halt.error()
            raise self._failed(REPLICATOR_UNIT, error.fact, error.remedy)

    def _is_settled(self, facts: UnitFacts) -> bool:
        """Returns whether no other process takes over the unit any more."""
        lost_at = self._lost_since.setdefault(facts.unit, time.monotonic())
        is_ordered = facts.process is not None and facts.process.acknowledged < facts.revision
        is_started = is_ordered and facts.desired.state is Desired.RUNNING
        return time.monotonic() - lost_at >= (START_S if is_started else STAND_BY_S)

    def _forgotten(self, unit: str) -> TerminalError:
        return TerminalError(
            f"{_subject(unit)} of group '{self._group}' was forgotten, {self._undone}", "it is no longer waited for"
        )

    def _failed(self, unit: str, fact: str, remedy: str) -> TerminalError:
        cure = "; ".join(filter(None, (remedy, self._stays)))
        return TerminalError(f"{_subject(unit)} of group '{self._group}' has failed, {self._undone}: {fact}", cure)

    @property
    def _group(self) -> str:
        return self._bucket.names.group

    def _tell(self, states: Sequence[UnitState]) -> None:
        found = [(each.unit, each.state) for each in states]
        if found != self._told:
            self._told = found
            log.info("waiting for processes of the group", group=self._group, units=described(states))


def described(states: Iterable[UnitState]) -> str:
    """Names each unit with its state and the reason for it."""
    return (
        ", ".join(f"{each.name} ({each.state}{f': {each.fact}' if each.fact else ''})" for each in states)
        or "none that is known yet"
    )


def _subject(unit: str) -> str:
    worker = worker_of_unit(unit)
    return "the replicator" if worker is None else f"worker '{worker}'"
