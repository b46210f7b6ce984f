"""Findings about the current load of the source: open transactions, free connections, sizes, the way to one instance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.snapshot.export import begin, import_snapshot
from pgsluice.replicator.source.connection import connect
from pgsluice.replicator.source.slot import OpenTransaction, open_transactions
from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.replicator.source.tables import SourceTable
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError, SnapshotGoneError
from pgsluice.shared.preflight.finding import Finding, Severity, Subject
from pgsluice.shared.preflight.provider import setting_cure

LONG_S = 60
OWN_CONNECTIONS = 3  # of a replicator, in addition to the copying ones: session, walsender, the keeper of a snapshot
MOST_TRIED = 8
COPY_BYTES_PER_S = 50_000_000
"""A cautious estimate: what two cores copied in the benchmarks."""

_CONNECTIONS: LiteralString = """
    SELECT current_setting('max_connections')::int
             - CASE WHEN r.rolsuper THEN 0
                    ELSE current_setting('superuser_reserved_connections')::int
                         + coalesce(current_setting('reserved_connections', true)::int, 0) END AS most,
           (SELECT sum(numbackends) FROM pg_stat_database)::int AS used,
           r.rolconnlimit AS most_of_role,
           (SELECT count(*) FROM pg_stat_activity a WHERE a.usename = current_user)::int AS used_by_role,
           d.datconnlimit AS most_of_database,
           (SELECT numbackends FROM pg_stat_database s WHERE s.datid = d.oid)::int AS used_in_database,
           current_setting('max_connections')::int AS max_connections
      FROM pg_roles r, pg_database d
     WHERE r.rolname = current_user AND d.datname = current_database()
"""

_SIZES: LiteralString = """
    SELECT count(*)::int AS tables, coalesce(sum(greatest(l.reltuples, 0)), 0)::bigint AS rows,
           coalesce(sum(pg_table_size(l.oid)), 0)::bigint AS bytes,
           (SELECT (wal_bytes / greatest(1, extract(epoch FROM clock_timestamp() - stats_reset)) * 3600)::bigint
              FROM pg_stat_wal WHERE stats_reset < clock_timestamp() - interval '10 minutes') AS wal_bytes_per_hour
      FROM pg_class l
     WHERE l.oid IN (SELECT o FROM unnest(%(oids)s::oid[]) o
                     UNION SELECT relid FROM unnest(%(oids)s::oid[]) o, pg_partition_tree(o) WHERE isleaf)
"""


@dataclass(frozen=True, slots=True)
class _Connections:
    """Limits of role and database are -1 for none. What is used counts the connection that asks."""

    most: int
    used: int
    most_of_role: int
    used_by_role: int
    most_of_database: int
    used_in_database: int
    max_connections: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    tables: int
    rows: int
    bytes: int
    wal_bytes_per_hour: int | None


async def transaction_findings(source: Source) -> list[Finding]:
    """Returns transactions that a new slot and a snapshot wait for, and that have a slot keep WAL."""
    return [_open(each) for each in await open_transactions(source) if each.gid is not None or (each.age_s or 0) >= LONG_S]


def _open(transaction: OpenTransaction) -> Finding:
    if transaction.gid is not None:
        cure = sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(transaction.gid)).as_string()
        remedy = f"end it, in its database: COMMIT PREPARED or {cure}"
    else:
        cure = f"SELECT pg_terminate_backend({transaction.pid})"
        remedy = f"let it end, or: {cure}"
    fact = f"a transaction is open that a new slot waits for, and that makes slots keep WAL: {transaction}"
    return Finding("source-open-transaction", Severity.WARNING, Subject.SOURCE, fact, remedy, choices=(cure,))


async def connection_findings(source: Source, facts: SourceFacts, copying: int) -> list[Finding]:
    """``copying`` connections are opened to copy tables, 0 without a copy."""
    [room] = await source.rows_of(_Connections, "counting the connections", _CONNECTIONS)
    needed = copying + OWN_CONNECTIONS
    return list(_scarce(room, facts, needed, "lower max-copy-connections, or " if copying else ""))


def _scarce(room: _Connections, facts: SourceFacts, needed: int, alternative: str) -> Iterator[Finding]:
    check, severity, subject = "source-connections", Severity.ERROR, Subject.SOURCE
    if (free := room.most - room.used + 1) < needed:
        cure = setting_cure(facts.provider, "max_connections", str(room.max_connections + needed - free + 10), restart=True)
        fact = f"of max_connections ({room.max_connections}) the source has {max(0, free)} left; the group needs {needed}"
        yield Finding(check, severity, subject, fact, alternative + cure.remedy, cure.statements, restart=True)
    if 0 <= room.most_of_role < room.used_by_role - 1 + needed:
        cure_role = f"ALTER ROLE {facts.role} CONNECTION LIMIT -1"
        fact = f"role {facts.user!r} may have {room.most_of_role} connections; the group needs {needed}"
        yield Finding(check, severity, subject, fact, alternative + cure_role, (cure_role,))
    if 0 <= room.most_of_database < room.used_in_database - 1 + needed:
        database = sql.Identifier(facts.database).as_string()
        cure_database = f"ALTER DATABASE {database} CONNECTION LIMIT -1"
        fact = f"database {facts.database!r} may have {room.most_of_database} connections; the group needs {needed}"
        yield Finding(check, severity, subject, fact, alternative + cure_database, (cure_database,))


async def size_findings(source: Source, tables: Sequence[SourceTable], *, copies: bool) -> list[Finding]:
    [sizes] = await source.rows_of(_Sizes, "measuring the tables", _SIZES, {"oids": [table.oid for table in tables]})
    copy_s = sizes.bytes / COPY_BYTES_PER_S
    copying = f"; copying them takes about {_duration(copy_s)} at {COPY_BYTES_PER_S // 1_000_000} MB/s" if copies else ""
    wal = "" if sizes.wal_bytes_per_hour is None else f"; the source writes {_amount(sizes.wal_bytes_per_hour)} of WAL an hour"
    fact = f"{len(tables)} tables with about {sizes.rows} rows and {_amount(sizes.bytes)}{copying}{wal}"
    return [Finding("source-sizes", Severity.INFO, Subject.SOURCE, fact)]


def _amount(size: float) -> str:
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 120 else f"{round(seconds / 60)} minutes"


async def instance_findings(settings: PostgresSettings, copying: int) -> list[Finding]:
    """Returns whether the address leads to one server: a snapshot that one connection exports is imported by some
    others.
    """
    keeper = await connect(settings)
    try:
        await begin(keeper)
        [name] = await (await keeper.execute("SELECT pg_export_snapshot()")).fetchone() or [""]
        outcomes = await asyncio.gather(
            *(_import(settings, name) for _ in range(min(copying, MOST_TRIED))), return_exceptions=True
        )
    finally:
        await keeper.close()
    if any(isinstance(outcome, SnapshotGoneError) for outcome in outcomes):
        return [
            Finding(
                "source-one-instance",
                Severity.ERROR,
                Subject.SOURCE,
                f"the address {settings.host} leads to several servers: a snapshot of one connection is unknown to another",
                "give the address of the primary itself (at Aurora the writer's), not one that balances load",
            )
        ]
    others = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if any(not isinstance(other, PgsluiceError) for other in others):
        raise others[0]
    return []  # a failed connection is reported by the checks that count connections


async def _import(settings: PostgresSettings, name: str) -> None:
    connection = await connect(settings)
    try:
        await begin(connection)
        await import_snapshot(connection, name)
    finally:
        await connection.close()
