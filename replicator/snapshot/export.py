"""A snapshot of the source that many connections can read under, and the one connection that keeps it alive.

A snapshot exists while the transaction that exported it is open. For a copy that is followed by the stream its exact
place in the WAL is needed, which only a logical slot provides (manual: "CREATE_REPLICATION_SLOT … EXPORT_SNAPSHOT"): a
temporary slot is made, its snapshot is imported by the keeper, exported again, and the replication connection is
closed, so that nothing retains WAL while the copy runs.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import LiteralString, Self

import psycopg
from psycopg import errors, sql

from pgsluice.replicator.source.connection import (
    RECOVERY_CONFLICT,
    Connection,
    connect,
    connect_for_replication,
    notice_our_end,
    sql_error,
)
from pgsluice.replicator.source.slot import SlotPatience, wait_for_slot
from pgsluice.replicator.source.source import Source
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import SnapshotGoneError
from pgsluice.shared.wire.position import LSN, parse_lsn

CHECK_INTERVAL_S = 1.0

_BEGIN: LiteralString = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

# Limits of the role that would end a transaction which only waits. Older servers do not know all of them.
_NO_LIMITS: LiteralString = """
    SELECT set_config(name, '0', false) FROM pg_settings
     WHERE name IN ('transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout', 'statement_timeout')
"""

_CURRENT_LSN: LiteralString = """
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text
"""


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """``name`` is what SET TRANSACTION SNAPSHOT takes. The snapshot holds the transactions whose commit LSN is below ``lsn``;
    without a slot ``lsn`` is only near to that."""

    name: str
    lsn: LSN
    id: str


class SnapshotKeeper:
    """The open transaction of a snapshot. ``source`` reads the catalog as of the snapshot, on ``connection``."""

    def __init__(self, connection: Connection, snapshot: ExportedSnapshot) -> None:
        self.connection = connection
        self.snapshot = snapshot
        self.source = Source(connection)

    @classmethod
    async def export(cls, settings: PostgresSettings) -> Self:
        """Exports a snapshot of now, without a slot."""
        connection = await connect(settings)
        try:
            await begin(connection)
            [lsn] = await _fetch(connection, _CURRENT_LSN)
            return cls(connection, await _export(connection, parse_lsn(lsn)))
        except BaseException:
            await connection.close()
            raise

    @classmethod
    async def export_at_slot(cls, settings: PostgresSettings, timeout_s: float) -> Self:
        """Exports a snapshot whose LSN is exact. Waits for the transactions that are open in the source, as every new
        slot does. Raises SlotTimeoutError when they stay open for longer than ``timeout_s``."""
        connection = await connect(settings)
        try:
            replication = await connect_for_replication(settings)
            try:
                lsn, name = await _create_temporary_slot(replication, SlotPatience(settings, timeout_s))
                await begin(connection)
                await import_snapshot(connection, name)
                return cls(connection, await _export(connection, lsn))
            finally:
                await replication.close()
        except BaseException:
            await connection.close()
            raise

    async def watch(self) -> None:
        """Ends only by raising SnapshotGoneError: the connection broke, and with it the snapshot."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self.connection.execute("SELECT 1")
            except psycopg.Error as error:
                reason = " ".join(str(error).split())
                is_conflict = isinstance(error, errors.SerializationFailure)
                raise SnapshotGoneError(
                    f"the connection that keeps the snapshot broke ({reason})",
                    RECOVERY_CONFLICT if is_conflict else "unfinished tables are copied again",
                ) from None

    async def close(self) -> None:
        await self.connection.close()


async def _create_temporary_slot(replication: Connection, patience: SlotPatience) -> tuple[LSN, str]:
    """Creates the slot; returns its consistent point and the snapshot's name.

    The consistent point is the end of a WAL record. A commit record that begins at that LSN is the first one that the
    snapshot does not show (PostgreSQL's own apply worker, should_apply_changes_for_rel, compares the same way).
    """
    slot = f"pgsluice_copy_{secrets.token_hex(8)}"
    # PostgreSQL 14 knows only this spelling; later versions, which write (SNAPSHOT 'export'), still take it.
    statement = f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
    await notice_our_end(replication)
    row = await wait_for_slot(slot, _fetch(replication, statement.encode()), patience)
    _, consistent_point, name, _ = row
    return parse_lsn(consistent_point), name


async def begin(connection: Connection) -> None:
    """Opens a transaction that can take a snapshot, and that no time limit of the role ends."""
    try:
        await connection.execute(_NO_LIMITS)
        await connection.execute(_BEGIN)
    except psycopg.Error as error:
        raise sql_error(error, "opening the snapshot's transaction") from None


async def import_snapshot(connection: Connection, name: str) -> None:
    """Makes the open transaction see what the snapshot shows. Raises SnapshotGoneError when it no longer exists."""
    try:
        await connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
    except (errors.InvalidParameterValue, errors.UndefinedObject, errors.ObjectNotInPrerequisiteState) as error:
        raise SnapshotGoneError(
            f"the snapshot is gone (SQLSTATE {error.sqlstate})", "unfinished tables are copied again"
        ) from None
    except psycopg.Error as error:
        raise sql_error(error, "reading under the snapshot") from None


async def _export(connection: Connection, lsn: LSN) -> ExportedSnapshot:
    [name] = await _fetch(connection, "SELECT pg_export_snapshot()")
    return ExportedSnapshot(name, lsn, f"{lsn:016X}-{secrets.token_hex(4)}")


async def _fetch(connection: Connection, query: LiteralString | bytes) -> tuple[str, ...]:
    try:
        row = await (await connection.execute(query)).fetchone()
    except psycopg.Error as error:
        raise sql_error(error, "exporting a snapshot") from None
    assert row is not None
    return row
