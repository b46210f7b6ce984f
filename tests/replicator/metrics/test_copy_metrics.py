"""How far a copy is, as metrics: from what the process knows of its tables."""

from __future__ import annotations

from typing import Any

from pgsluice.replicator.group_start import Run
from pgsluice.replicator.metrics.replicator_metrics import ReplicatorMetrics
from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy
from pgsluice.replicator.snapshot.table_progress import TableProgress
from pgsluice.shared.broker.ledger import Phase, TableRecord
from pgsluice.shared.metrics.metric import OTHER_TABLES
from pgsluice.shared.wire.names import GroupNames


def record(oid: int, phase: Phase, rows: int, done: int, ranges: int) -> TableRecord:
    return TableRecord(oid, "public", f"t{oid}", phase, "", rows=rows, bytes=10 * rows, ranges_done=done, ranges=ranges)


def test_a_copy_shows_its_tables_by_phase_and_those_beyond_the_bound_together() -> None:
    nothing: Any = None  # the broker, which nobody asks here
    records = [
        record(1, Phase.FINISHED_COPY, 100, 4, 4),
        record(2, Phase.DATA_SYNC, 50, 1, 5),
        record(3, Phase.DATA_SYNC, 7, 1, 2),
        record(4, Phase.ERRORED, 1, 0, 3),
    ]
    run = Run(nothing, GroupNames("orders"))
    metrics = ReplicatorMetrics(run, 2)
    assert not [sample for sample in metrics.collect() if "copy" in sample.metric.name]
    progress = TableProgress(nothing, records)
    run.copy = PreparedCopy(run.names, nothing, "", nothing, nothing, nothing, nothing, progress, snapshot_since=0.0)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in metrics.collect():
        found.setdefault(sample.metric.name, {})[sample.labels] = sample.value
    phases = {"init": 0, "data_sync": 2, "finished_copy": 1, "errored": 1, "left": 0}
    assert found["pgsluice_copy_tables"] == {(phase,): count for phase, count in phases.items()}
    assert found["pgsluice_copy_rows_total"] == {("public.t1",): 100, ("public.t2",): 50, (OTHER_TABLES,): 8}
    assert found["pgsluice_copy_bytes_total"] == {(): 1580}
    assert found["pgsluice_copy_ranges"] == {
        ("public.t1", "done"): 4,
        ("public.t2", "done"): 1,
        (OTHER_TABLES, "done"): 1,
        ("public.t1", "left"): 0,
        ("public.t2", "left"): 4,
        (OTHER_TABLES, "left"): 4,
    }
    assert found["pgsluice_copy_snapshot_seconds"][()] > 0
    run.copy.snapshot_since = None
    assert not [sample for sample in metrics.collect() if sample.metric.name == "pgsluice_copy_snapshot_seconds"]
