"""An exported snapshot: exact, shared by connections, without a slot behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from pgsluice.replicator.snapshot.export import SnapshotKeeper, begin, import_snapshot
from pgsluice.replicator.source.connection import connect
from pgsluice.shared.errors import SnapshotGoneError
from pgsluice.shared.wire.position import parse_lsn
from tests.servers import Database, PostgresServer

TIMEOUT_S = 60.0


async def count_under(source: Database, name: str) -> int:
    connection = await connect(source.settings)
    try:
        await begin(connection)
        await import_snapshot(connection, name)
        row = await (await connection.execute("SELECT count(*) FROM public.t")).fetchone()
        assert row is not None
        return int(row[0])
    finally:
        await connection.close()


def slots(source: Database) -> list[tuple[object, ...]]:
    return source.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")


async def test_other_connections_see_what_the_snapshot_saw_and_no_slot_is_left(source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    keeper = await SnapshotKeeper.export_at_slot(source_database.settings, TIMEOUT_S)
    try:
        source_database.execute("INSERT INTO t VALUES (2)")
        assert await count_under(source_database, keeper.snapshot.name) == 1
        assert slots(source_database) == []
    finally:
        await keeper.close()


async def test_the_oldest_server_exports_a_snapshot_at_a_slot(postgres_of: Callable[[int], PostgresServer]) -> None:
    database = postgres_of(14).create_database("exported")
    keeper = await SnapshotKeeper.export_at_slot(database.settings, TIMEOUT_S)
    await keeper.close()
    assert keeper.snapshot.lsn > 0
    database.drop()


async def test_the_lsn_divides_what_the_snapshot_holds_from_what_it_does_not(source_database: Database) -> None:
    """Each commit's record begins before the server's WAL position after it and after the one before it."""
    source_database.execute("CREATE TABLE t (a int)")
    stop = asyncio.Event()
    commits: list[tuple[int, int]] = []

    def write() -> None:
        with psycopg.connect(source_database.server.dsn(source_database.dbname), autocommit=True) as connection:
            while not stop.is_set():
                before = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                connection.execute("INSERT INTO t VALUES (%s)", [len(commits)])
                after = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert before is not None
                assert after is not None
                commits.append((parse_lsn(before[0]), parse_lsn(after[0])))

    writing = asyncio.create_task(asyncio.to_thread(write))
    try:
        for _ in range(10):
            keeper = await SnapshotKeeper.export_at_slot(source_database.settings, TIMEOUT_S)
            held = await count_under(source_database, keeper.snapshot.name)
            lsn = keeper.snapshot.lsn
            await keeper.close()
            seen = list(commits)
            assert all(before < lsn for before, _ in seen[:held])
            assert all(after > lsn for _, after in seen[held:])
    finally:
        stop.set()
        await writing


async def test_a_snapshot_without_a_slot_needs_no_logical_wal(source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    keeper = await SnapshotKeeper.export(source_database.settings)
    try:
        assert await count_under(source_database, keeper.snapshot.name) == 1
    finally:
        await keeper.close()


async def test_a_terminated_keeper_is_noticed_and_its_snapshot_is_gone(source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (a int)")
    keeper = await SnapshotKeeper.export_at_slot(source_database.settings, TIMEOUT_S)
    watching = asyncio.create_task(keeper.watch())
    source_database.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE application_name = 'pgsluice' AND state = 'idle in transaction' AND datname = current_database()"
    )
    with pytest.raises(SnapshotGoneError):
        await asyncio.wait_for(watching, 120)
    with pytest.raises(SnapshotGoneError):
        await count_under(source_database, keeper.snapshot.name)
    await keeper.close()


async def test_time_limits_of_the_role_do_not_end_the_keeper(source_database: Database) -> None:
    """Each of the limits would end an idle transaction; an unlimited one is what the session says."""
    role = f"limited_{source_database.dbname}"
    limits = ("idle_in_transaction_session_timeout", "transaction_timeout", "statement_timeout", "idle_session_timeout")
    source_database.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    source_database.execute("".join(f"ALTER ROLE {role} SET {limit} = '3s';" for limit in limits))
    try:
        keeper = await SnapshotKeeper.export_at_slot(replace(source_database.settings, user=role), TIMEOUT_S)
        try:
            for limit in limits:
                assert await keeper.source.rows("", "SELECT current_setting(%s)", [limit]) == [("0",)]
        finally:
            await keeper.close()
    finally:
        source_database.execute(f"DROP ROLE {role}")
