"""Looks at groups that are in many states at once."""

from __future__ import annotations

from typing import Any

from pgsluice.console.status import GroupStatus
from pgsluice.console.table_status import TableStatus
from pgsluice.console.watch.look import Look
from pgsluice.console.worker_status import WorkerStatus
from pgsluice.replicator.source.slot import ReplicationSlot
from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.broker.replicator_records import GroupRecord, ReplicatorRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.broker.unit_records import worker_unit
from pgsluice.shared.units.unit_states import State, UnitState

AT = "2026-01-31T12:00:00+00:00"


def table(name: str, phase: Phase, **changed: Any) -> TableStatus:
    fields: dict[str, Any] = {
        "table": name,
        "phase": phase,
        "since": AT,
        "copied_at": "",
        "rows": 1_234_567,
        "bytes": 123_456_789,
        "ranges_done": 6,
        "ranges": 10,
        "rows_per_s": 123_456.0,
        "attempt": 1,
        "lsn": "0/1",
        "error": "",
        "remedy": "",
    }
    return TableStatus(**(fields | changed))


def worker(name: str, **changed: Any) -> WorkerStatus:
    fields: dict[str, Any] = {
        "name": name,
        "sequence": 100,
        "commit_lsn": "0/1",
        "committed_at": AT,
        "changes": 1000,
        "latency_p50_s": None,
        "latency_p99_s": None,
        "started_at": AT,
        "updated_at": AT,
        "host": "here",
        "pid": 17,
        "holds_lease": True,
        "lag_messages": 12,
        "lag_bytes": 3 << 20,
        "lag_s": 0.4,
        "dead_letters": 0,
        "holds_back": 0,
        "rules": "",
        "catching_up": 0,
        "catch_up_lag_messages": 0,
        "catch_up_lag_s": 0.0,
        "waiting": "",
        "missed": [],
        "missed_tables": 0,
    }
    return WorkerStatus(**(fields | changed))


def group(**changed: Any) -> GroupStatus:
    fields: dict[str, Any] = {
        "group": "orders",
        "bound_to": GroupRecord("orders", "7410", 1, "shop", "p", 1, "s", "0/1", AT),
        "replicator": ReplicatorRecord("0/1", "", 1, changes=5000, body_bytes=1 << 20, started_at=AT),
        "slot": ReplicationSlot("s", "pgoutput", "shop", 4711, "0/1", 1 << 20, "reserved", "", False),
        "source_problem": "",
        "stream": StreamState("c", 1, 112, 112, 1 << 30, 10 << 30),
        "snapshot_stream": None,
        "membership": None,
        "tables": [],
        "workers": [worker("postgres")],
        "halt": None,
        "forged_definitions": 0,
        "missed_definitions": 0,
    }
    every = fields | changed
    running = [UnitState(unit, State.RUNNING) for unit in ("replicator", *(worker_unit(each.name) for each in every["workers"]))]
    return GroupStatus(**({"units": running} | every))


def look(at_s: float = 0.0, **changed: Any) -> Look:
    return Look(group(**changed), at_s)
