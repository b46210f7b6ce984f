"""What ``pgsluice status`` says of a group's tables: how far each copy is, and which are not published as they should be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.console.columns import format_columns
from pgsluice.replicator.membership.membership import Break, Membership
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyMode, CopyState, LedgerContent, Phase, SnapshotRecord, TableRecord
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.wire.position import LSN, parse_lsn


@dataclass(frozen=True, slots=True)
class TableStatus:
    """``rows_per_s`` is that of the newest attempt, None before it began. ``bytes`` are those of COPY text."""

    table: str
    phase: Phase
    since: str
    rows: int
    bytes: int
    ranges_done: int
    ranges: int
    rows_per_s: float | None
    attempt: int
    lsn: str
    error: str
    remedy: str


@dataclass(frozen=True, slots=True)
class AppliedPlaces:
    """How far the workers of a group are. All that commits below ``published`` is in ``stream``."""

    workers: Collection[WorkerReport]
    published: LSN
    stream: StreamState | None

    @classmethod
    async def read(cls, bucket: StateBucket) -> AppliedPlaces:
        """Raises TransientError when NATS does not answer."""
        reports, replicator = await read_reports(bucket), await bucket.read(REPLICATOR_KEY, ReplicatorRecord)
        published = LSN(0) if replicator is None else parse_lsn(replicator.value.flushed_lsn)
        return cls(reports.values(), published, await ChangeStream(bucket.client, bucket.names).state())

    def phase(self, table: TableRecord, snapshot: SnapshotRecord | None) -> Phase:
        """The recorded phase; that of a finished copy goes on with what the slowest worker has applied."""
        if snapshot is None or table.phase is not Phase.FINISHED_COPY or not self.workers:
            return table.phase
        is_running = snapshot.state is CopyState.RUNNING
        last_copied = table.last_sequence or snapshot.last_sequence
        is_left_out = is_running and not table.last_sequence
        if is_left_out or any(worker.snapshot_sequence < last_copied for worker in self.workers):
            return Phase.FINISHED_COPY
        lsn = parse_lsn(table.lsn)
        is_ready = snapshot.mode is CopyMode.COPY or all(
            table.oid not in worker.catching_up and _has_passed(worker, lsn, self.published, self.stream)
            for worker in self.workers
        )
        if is_ready:
            return Phase.READY
        return Phase.SYNC_WAIT if is_running else Phase.CATCHUP


def table_statuses(ledger: LedgerContent, applied: AppliedPlaces) -> list[TableStatus]:
    """By schema and name; none when nothing was ever copied."""
    if ledger.snapshot is None:
        return []
    return [
        _table_status(table, applied.phase(table, ledger.snapshot))
        for table in sorted(ledger.tables.values(), key=lambda table: (table.schema, table.table))
    ]


def _has_passed(worker: WorkerReport, lsn: LSN, published: LSN, stream: StreamState | None) -> bool:
    """Whether the worker has applied every change that commits below ``lsn``, those of other tables included."""
    if parse_lsn(worker.commit_lsn) >= lsn:
        return True
    return stream is not None and published >= lsn and worker.sequence >= stream.last_sequence


def _table_status(table: TableRecord, phase: Phase) -> TableStatus:
    return TableStatus(
        table=table.qualified_name,
        phase=phase,
        since=table.since,
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
    """Aligned columns, and below a table in trouble what is wrong and what to do."""
    rows = [
        (
            table.table,
            table.phase.value,
            f"{table.rows:,}",
            f"{table.bytes / 1e6:,.1f}",
            f"{table.ranges_done}/{table.ranges}",
            "-" if table.rows_per_s is None else f"{table.rows_per_s:,.0f}",
            table.since[:19],
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
    """One line for the publication, and one for each thing that is not as it should be."""
    yield f"publication  {status.publication}: {status.tables} tables, looked at {status.seen_at[:19]}, {status.seen_lsn}"
    for entry in status.missing:
        yield f"    MISSING  changes of {entry.qualified_name} since {entry.lsn} ({entry.at[:19]}): {entry.reason}"
    for entry in status.left:
        yield f"    left     {entry.qualified_name} is not replicated since {entry.lsn} ({entry.at[:19]}): {entry.reason}"
    for entry in status.partition_changes:
        yield f"    changed  {entry.qualified_name}: {entry.reason} ({entry.at[:19]}); --recopy brings the table up to date"
    for name in status.unpublished:
        yield f"    new      {name} is not replicated"
