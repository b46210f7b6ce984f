"""What the demo shows of the copy: what the ledger says of each table, and how much of it is in the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.shared.broker.ledger import CopyState, Ledger, Phase, TableRecord
from tests.servers import Database

_APPLIED = "SELECT copied_rows, snapshot_sequence FROM pgsluice.applied WHERE group_name = %s AND worker = %s"


@dataclass(frozen=True, slots=True)
class CopyFigures:
    """One look. ``is_published``: every row is in the snapshot stream. ``is_applied``: and in the target."""

    taken_at: float
    tables: tuple[TableRecord, ...]
    is_published: bool
    is_applied: bool
    applied_rows: int

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)

    @property
    def percent(self) -> float:
        return percent_copied(self.tables)

    @property
    def finished(self) -> int:
        return sum(table.phase is Phase.FINISHED_COPY for table in self.tables)

    @property
    def errored(self) -> list[TableRecord]:
        return [table for table in self.tables if table.phase is Phase.ERRORED]


def percent_copied(tables: Sequence[TableRecord]) -> float:
    """Of the tables' pages, each table's by the share of its ranges that are published; 0 before its copy is planned."""
    pages = sum(table.bytes_total for table in tables)
    done = sum(table.bytes_total * table.ranges_done / table.ranges for table in tables if table.ranges)
    return 100.0 * done / pages if pages else 0.0


class CopyObserver:
    """Takes figures of the copy of one group with its worker ``postgres``, once the replicator has begun it."""

    def __init__(self, target: Database, ledger: Ledger, group: str) -> None:
        self._target = target.connect()
        self._ledger = ledger
        self._group = group

    def close(self) -> None:
        self._target.close()

    async def look(self, now: float) -> CopyFigures:
        content = await self._ledger.load()
        snapshot = content.snapshot
        applied_rows, applied_sequence = self._applied()
        is_published = snapshot is not None and snapshot.state is CopyState.FINISHED
        return CopyFigures(
            taken_at=now,
            tables=tuple(sorted(content.tables.values(), key=lambda table: table.qualified_name)),
            is_published=is_published,
            is_applied=snapshot is not None and is_published and applied_sequence >= snapshot.last_sequence,
            applied_rows=applied_rows,
        )

    def _applied(self) -> tuple[int, int]:
        """Rows and the sequence in the snapshot stream; 0 before the worker's first batch."""
        known = self._target.execute("SELECT to_regclass('pgsluice.applied')").fetchone()
        row = self._target.execute(_APPLIED, [self._group, "postgres"]).fetchone() if known and known[0] else None
        return (0, 0) if row is None else (row[0], row[1])
