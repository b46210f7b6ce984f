"""What units are to do, and what their processes tell."""

from __future__ import annotations

from pgsluice.shared.broker.record import decode, encode
from pgsluice.shared.broker.unit_records import (
    REPLICATOR_UNIT,
    Desired,
    DesiredRecord,
    ProcessRecord,
    WaitRecord,
    desired_key,
    process_key,
    unit_of_key,
    worker_of_unit,
    worker_unit,
)
from pgsluice.shared.errors import Cause
from pgsluice.shared.process.pulse import Activity

NOW = "2026-01-01T00:00:00+00:00"


def test_records_are_what_they_were_when_they_are_read() -> None:
    wait = WaitRecord(Cause.TARGET, "the target is away", NOW, NOW)
    process = ProcessRecord("host", 7, NOW, NOW, Activity.WORKING, wait=wait, acknowledged=3)
    assert decode(ProcessRecord, encode(process)) == process
    desired = DesiredRecord(Desired.PAUSED, "a release", "somebody", NOW)
    assert decode(DesiredRecord, encode(desired)) == desired


def test_units_have_keys_that_name_them() -> None:
    unit = worker_unit("postgres")
    assert (unit_of_key(desired_key(unit)), unit_of_key(process_key(REPLICATOR_UNIT))) == (unit, REPLICATOR_UNIT)
    assert (worker_of_unit(unit), worker_of_unit(REPLICATOR_UNIT)) == ("postgres", None)
    assert unit_of_key("worker.postgres") is None
