"""One worker: where it is, what it does, and its newest batches with what they waited for."""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.group_api import found_bucket, view_of
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.worker_status import WorkerStatus
from pgsluice.shared.broker.unit_records import worker_unit
from pgsluice.shared.broker.worker_records import BatchesRecord, BatchRecord, batches_key
from pgsluice.shared.units.unit_states import UnitState


@dataclass(frozen=True, slots=True)
class WorkerView:
    """``worker`` is None before its first report. ``batches`` are from its newest process that applied any, which began
    at ``batches_since`` ("": none did), the newest first."""

    state: UnitState
    worker: WorkerStatus | None
    batches_since: str
    batches: tuple[BatchRecord, ...]


async def show_worker(call: Call) -> Answer:
    view, name = await view_of(call), call.path["worker"]
    status = view.status
    states = {} if status is None else {each.unit: each for each in status.units}
    if status is None or worker_unit(name) not in states:
        known = ", ".join(unit.name for unit in states.values() if unit.unit != unit.name) or "none yet"
        raise Problem(ProblemKind.NOT_FOUND, f"group '{view.group}' has no worker '{name}'", f"there are: {known}")
    bucket = await found_bucket(call)
    entry = None if bucket is None else await bucket.read(batches_key(name), BatchesRecord)
    told = BatchesRecord("") if entry is None else entry.value
    worker = next((each for each in status.workers if each.name == name), None)
    return Answer(WorkerView(states[worker_unit(name)], worker, told.started_at, told.batches[::-1]))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/groups/{group}/workers/{worker}",
        "One worker: its position, its lag, its newest batches and their waits",
        Role.VIEWER,
        show_worker,
        answer=WorkerView,
        rows=Rows.STAY,
    ),
)
