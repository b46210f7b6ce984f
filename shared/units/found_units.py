"""The state bucket's facts about a group's units, from which their states are derived."""

from __future__ import annotations

from collections.abc import Iterable

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyState, SnapshotRecord
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY
from pgsluice.shared.broker.unit_records import (
    REPLICATOR_UNIT,
    ProcessRecord,
    desired_wish,
    process_key,
    unit_of_key,
    worker_of_unit,
    worker_unit,
)
from pgsluice.shared.broker.worker_records import LEASE_DURATION_S, WorkerReport, lease_key, worker_key, worker_of
from pgsluice.shared.units.unit_states import UnitFacts


async def known_units(bucket: StateBucket, documented: Iterable[str] = ()) -> list[str]:
    """Returns the replicator, then the workers by name; ``documented`` among them, which the bucket may know nothing
    of."""
    units = {REPLICATOR_UNIT, *documented}
    for key in await bucket.keys():
        worker = worker_of(key)
        unit = unit_of_key(key) if worker is None else worker_unit(worker)
        if unit is not None and await bucket.get(key) is not None:
            units.add(unit)
    return sorted(units, key=lambda unit: (unit != REPLICATOR_UNIT, unit))


async def read_units(bucket: StateBucket, units: Iterable[str], copy: SnapshotRecord | None) -> list[UnitFacts]:
    """``copy`` is the ledger's record of the newest copy. Raises TransientError when NATS does not answer,
    TerminalError when a record is malformed."""
    return [await _read_unit(bucket, unit, copy) for unit in units]


async def _read_unit(bucket: StateBucket, unit: str, copy: SnapshotRecord | None) -> UnitFacts:
    desired = await desired_wish(unit).read(bucket)
    process = await bucket.read(process_key(unit), ProcessRecord)
    age_s = None if process is None else await bucket.age_s(process_key(unit))
    worker = worker_of_unit(unit)
    is_running = copy is not None and copy.state is CopyState.RUNNING
    if worker is None:
        holds_lease, is_copying, was_started = False, is_running, await bucket.get(REPLICATOR_KEY) is not None
    else:
        report = await bucket.read(worker_key(worker), WorkerReport)
        holds_lease, was_started = await _holds_lease(bucket, worker), report is not None
        is_copying = is_running or (report is not None and _has_copied_rows_to_apply(report.value, copy))
    return UnitFacts(
        unit,
        desired.value,
        desired.revision,
        None if process is None else process.value,
        age_s or 0.0,
        holds_lease,
        is_copying,
        was_started,
    )


async def _holds_lease(bucket: StateBucket, worker: str) -> bool:
    key = lease_key(worker)
    age_s = None if await bucket.get(key) is None else await bucket.age_s(key)
    return age_s is not None and age_s <= LEASE_DURATION_S


def _has_copied_rows_to_apply(report: WorkerReport, copy: SnapshotRecord | None) -> bool:
    return copy is not None and report.snapshot_sequence < copy.last_sequence
