"""A line for each process of a group: its state, its lag, its rate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgsluice.console.columns import format_bytes
from pgsluice.console.status import GroupStatus
from pgsluice.console.watch.rates import Rates
from pgsluice.console.worker_status import PublisherStatus, WorkerStatus
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, worker_unit
from pgsluice.shared.units.unit_states import State

_UNKNOWN = "-"
_STYLES = {
    State.RUNNING: "green",
    State.COPYING: "cyan",
    State.FAILING: "bold yellow",
    State.FAILED: "bold red",
    State.UNKNOWN: "bold red",
    State.DRAFT: "dim",
    State.STOPPED: "dim",
    State.FINISHED: "dim",
}


@dataclass(frozen=True, slots=True)
class UnitLine:
    """Texts as they are shown; ``style`` is the state's."""

    name: str
    state: str
    style: str = ""
    messages: str = ""
    bytes: str = ""
    seconds: str = ""
    rate: str = ""
    dead: str = ""


def unit_lines(status: GroupStatus, rates: Rates) -> list[UnitLine]:
    """Returns the publisher's line, the replicator or another group's worker; then the workers' by name."""
    states = {unit.unit: unit.state for unit in status.units}
    workers = [_worker(worker, states.get(worker_unit(worker.name), State.DRAFT), rates) for worker in status.workers]
    if status.publisher is not None:
        return [_publisher(status.publisher), *workers]
    return [_line(REPLICATOR_UNIT, states.get(REPLICATOR_UNIT, State.DRAFT), rates.published_changes), *workers]


def _publisher(publisher: PublisherStatus) -> UnitLine:
    return replace(
        _line(publisher.name, publisher.unit.state, None),
        messages=_UNKNOWN if publisher.lag_messages is None else f"{publisher.lag_messages:,}",
        seconds=_UNKNOWN if publisher.lag_s is None else f"{publisher.lag_s:,.1f}",
    )


def _worker(worker: WorkerStatus, state: State, rates: Rates) -> UnitLine:
    return replace(
        _line(worker.name, state, rates.applied.get(worker.name)),
        messages=_UNKNOWN if worker.lag_messages is None else f"{worker.lag_messages:,}",
        bytes=_UNKNOWN if worker.lag_bytes is None else format_bytes(worker.lag_bytes),
        seconds=_UNKNOWN if worker.lag_s is None else f"{worker.lag_s:,.1f}",
        dead=f"{worker.dead_letters:,}" if worker.dead_letters else "",
    )


def _line(name: str, state: State, rate: float | None) -> UnitLine:
    return UnitLine(name, state.value, _STYLES.get(state, ""), rate=_rate(rate))


def _rate(rate: float | None) -> str:
    return _UNKNOWN if rate is None else f"{rate:,.0f}"
