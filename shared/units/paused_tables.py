"""Tables whose changes are held back because a user paused them, under ``paused_tables`` in the state bucket.

They are known by OID, so that a table which is renamed stays paused. Workers read the record once a second, and report
which tables they hold back.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.broker.wishes import WishKey


@dataclass(frozen=True, slots=True)
class PausedTable:
    """``schema`` and ``table`` are its name when it was paused. ``by`` and ``reason`` are for readers."""

    oid: int
    schema: str
    table: str
    reason: str = ""
    by: str = ""
    at: TimeText = ""

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class PausedTables:
    """All tables that are paused."""

    tables: tuple[PausedTable, ...] = ()

    @property
    def oids(self) -> frozenset[int]:
        return frozenset(table.oid for table in self.tables)


PAUSED_TABLES = WishKey("paused_tables", PausedTables())
