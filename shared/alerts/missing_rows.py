"""Changes that met no row in a sink, as reported in the log, the status, on the page and by an alert."""

from __future__ import annotations

from collections.abc import Mapping

from pgsluice.shared.broker.ledger import Phase, TableRecord
from pgsluice.shared.broker.worker_records import MissedReport


def is_divergence(missed: MissedReport, tables: Mapping[int, TableRecord]) -> bool:
    """Returns whether it is evidence that source and target differ: the table was copied, and neither filter nor route
    touches it."""
    table = tables.get(missed.oid)
    return table is not None and table.phase is Phase.FINISHED_COPY and not missed.expected


def counted(changes: int, updates: int, deletes: int) -> str:
    """Formats like ``5 changes (2 updates, 3 deletes)``; without the kinds if an earlier version counted."""
    kinds = f" ({updates} updates, {deletes} deletes)" if updates + deletes == changes else ""
    return f"{changes} changes{kinds}"


def missed_remedy(table: str, position: str) -> str:
    """``table`` is the source's name, ``position`` the position of the first change, "" if unknown."""
    shown = f"'pgsluice messages --from {position} --limit 1' shows the first of them, with its key; " if position else ""
    return f"{shown}find out who writes to the target, then 'pgsluice tables resync {table}' makes both equal again"
