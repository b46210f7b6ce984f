"""A group's tables for ``pgsluice status``: the progress of each copy, and tables that are not published as configured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.console.columns import format_columns
from pgsluice.replicator.membership.membership import Break, Membership
from pgsluice.shared.broker.ledger import LedgerContent, Phase, TableRecord
from pgsluice.shared.units.applied_places import AppliedPlaces


@dataclass(frozen=True, slots=True)
class TableStatus:
    """``since`` is when the table came into ``phase``, "" where that is not known, ``copied_at`` when its copy was in
    the stream, "" before. ``rows_per_s`` is the newest attempt's, None before it began. ``bytes`` are of COPY text."""

    table: str
    phase: Phase
    since: str
    copied_at: str
    rows: int
    bytes: int
    ranges_done: int
    ranges: int
    rows_per_s: float | None
    attempt: int
    lsn: str
    error: str
    remedy: str


def table_statuses(ledger: LedgerContent, applied: AppliedPlaces) -> list[TableStatus]:
    """Returns the statuses by schema and name; empty when nothing was ever copied."""
    if ledger.snapshot is None:
        return []
    return [
        _table_status(table, *applied.phase_since(table, ledger.snapshot))
        for table in sorted(ledger.tables.values(), key=lambda table: (table.schema, table.table))
    ]


def _table_status(table: TableRecord, phase: Phase, since: str) -> TableStatus:
    return TableStatus(
        table=table.qualified_name,
        phase=phase,
        since=since,
        copied_at=table.since if table.phase is Phase.FINISHED_COPY else "",
        rows=table.rows,
        bytes=table.bytes,
        ranges_done=table.ranges_done,
        ranges=table.ranges,
        rows_per_s=_rows_per_s(table),
        attempt=table.attempt,
        lsn=table.lsn,
        error=table.error,
        remedy=table.remedy,
    )


def _rows_per_s(table: TableRecord) -> float | None:
    if not table.began_at:
        return None
    is_running = table.phase is Phase.DATA_SYNC
    end = datetime.now(UTC) if is_running else datetime.fromisoformat(table.since)
    seconds = (end - datetime.fromisoformat(table.began_at)).total_seconds()
    return table.rows / seconds if seconds > 0 else None


_HEADINGS = ("table", "phase", "rows", "MB", "ranges", "rows/s", "since")
_NUMBERS = range(2, 6)


def format_tables(tables: Sequence[TableStatus]) -> Iterator[str]:
    """Yields aligned columns, and below a table in trouble the problem and the remedy."""
    rows = [
        (
            table.table,
            table.phase.value,
            f"{table.rows:,}",
            f"{table.bytes / 1e6:,.1f}",
            f"{table.ranges_done}/{table.ranges}",
            "-" if table.rows_per_s is None else f"{table.rows_per_s:,.0f}",
            table.since[:19] or "-",
        )
        for table in tables
    ]
    headings, *lines = format_columns(_HEADINGS, rows, numbers=_NUMBERS)
    yield headings
    for table, line in zip(tables, lines, strict=True):
        yield line
        if table.error:
            yield f"    {table.error}: {table.remedy}" if table.remedy else f"    {table.error}"


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """The record of the publication; ``tables`` counts what it holds."""

    publication: str
    tables: int
    seen_at: str
    seen_lsn: str
    left: Sequence[Break]
    missing: Sequence[Break]
    partition_changes: Sequence[Break]
    unpublished: Sequence[str]


def membership_status(membership: Membership) -> MembershipStatus:
    return MembershipStatus(
        publication=membership.name,
        tables=len(membership.members),
        seen_at=membership.seen_at,
        seen_lsn=membership.seen_lsn,
        left=membership.left,
        missing=membership.missing,
        partition_changes=membership.partition_changes,
        unpublished=membership.unpublished,
    )


def format_membership(status: MembershipStatus) -> Iterator[str]:
    """Yields one line for the publication, and one for each thing that is not as it should be."""
    yield f"publication  {status.publication}: {status.tables} tables, looked at {status.seen_at[:19]}, {status.seen_lsn}"
    for entry in status.missing:
        yield f"    MISSING  changes of {entry.qualified_name} since {entry.lsn} ({entry.at[:19]}): {entry.reason}"
    for entry in status.left:
        yield f"    left     {entry.qualified_name} is not replicated since {entry.lsn} ({entry.at[:19]}): {entry.reason}"
    for entry in status.partition_changes:
        yield f"    changed  {entry.qualified_name}: {entry.reason} ({entry.at[:19]}); --recopy brings the table up to date"
    for name in status.unpublished:
        yield f"    new      {name} is not replicated"
