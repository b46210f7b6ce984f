"""The problems of a group, a sentence for each, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.console.status import GroupStatus
from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.units.unit_states import State, UnitState

_TROUBLED = frozenset({State.FAILING, State.FAILED, State.UNKNOWN})


def troubles(status: GroupStatus) -> Iterator[str]:
    if not status.was_started:
        yield "this group has never been started on this NATS"
    if status.halt is not None:
        yield f"HALTED: {status.halt.fact}: {status.halt.remedy}"
    if status.slot is not None and status.slot.lost:
        yield f"the slot is LOST ({status.slot.lost})"
    yield from (f"{short.fact}: {short.remedy}" for short in status.shortages)
    for table in status.tables:
        if table.phase is Phase.ERRORED:
            yield f"{table.table} is not copied: {table.error}" + (f": {table.remedy}" if table.remedy else "")
    if status.publisher is not None and _is_troubled(status.publisher.unit):
        yield f"group {status.publisher.group}: {_unit(status.publisher.unit)}"
    yield from (_unit(unit) for unit in status.units if _is_troubled(unit))
    for worker in status.workers:
        if worker.holds_back:
            yield f"{worker.name} does not run and holds back {worker.holds_back:,} messages"
        yield from (
            f"{missed.changes:,} changes of {missed.table} met no row in {worker.name}'s sink, so source and target differ:"
            f" {missed.remedy}"
            for missed in worker.missed
            if missed.diverged
        )


def _is_troubled(unit: UnitState) -> bool:
    return unit.state in _TROUBLED or unit.cause is not None


def _unit(unit: UnitState) -> str:
    since = f" since {unit.since[11:19]}" if unit.since else ""
    attempt = f", next attempt {unit.next_attempt_at[11:19]}" if unit.next_attempt_at else ""
    about = f" ({unit.cause.value})" if unit.cause is not None else ""
    remedy = f": {unit.remedy}" if unit.remedy else ""
    return f"{unit.name} {unit.state.value}{about}{since}{attempt}: {unit.fact}{remedy}"
