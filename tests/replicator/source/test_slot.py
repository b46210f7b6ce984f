"""A new slot waits for transactions that are open in the source: who they are is said, and it does not wait for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgsluice.replicator.snapshot.export import SnapshotKeeper
from pgsluice.replicator.source.slot import SlotPatience, create_slot, end_own_reader, find_slot
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.walsender import WalSender
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import SlotTimeoutError, TransientError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN
from tests.replicated_group import Group
from tests.replicator.test_replicator import process
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until, wait_until_async

SECRET_QUERY = "SELECT 'not for the log', pg_current_xact_id()"


@contextmanager
def open_transaction(database: Database, application: str = "nightly import") -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """One that has written something, as far as the server knows."""
    with psycopg.connect(database.server.dsn(database.dbname), application_name=application) as connection:
        connection.execute(SECRET_QUERY)
        yield connection


def slots(database: Database) -> list[tuple[object, ...]]:
    return database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")


async def create(settings: PostgresSettings, names: GroupNames, timeout_s: float) -> None:
    source = await Source.connect(settings)
    try:
        await create_slot(source, names, await source.facts(), False, SlotPatience(settings, timeout_s))
        assert await find_slot(source, names) is not None
    finally:
        await source.close()


async def test_who_is_waited_for_is_told_again_and_again_until_they_end(
    source_database: Database, group: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pgsluice.replicator.source.slot.LOG_INTERVAL_S", 0.1)
    with open_transaction(source_database) as transaction:
        pid = transaction.info.backend_pid
        creating = asyncio.create_task(create(source_database.settings, GroupNames(group), 60.0))

        def told() -> list[dict[str, Any]]:
            return [vars(record)["pgsluice_fields"] for record in caplog.records if "still waits" in record.message]

        async def told_twice() -> bool:
            return len(told()) >= 2

        await wait_until_async(told_twice, what="two lines about the open transaction")
        transaction.commit()
        await creating
    fields = told()[1]
    assert f"process {pid} " in fields["transactions"]
    assert "nightly import" in fields["transactions"]
    assert source_database.dbname in fields["transactions"]
    assert "not for the log" not in repr(fields)
    assert fields["waited_s"] > 0


async def test_a_slot_that_cannot_be_made_in_time_is_not_left_half_made(source_database: Database, group: str) -> None:
    with open_transaction(source_database) as transaction:
        with pytest.raises(SlotTimeoutError, match=rf"process {transaction.info.backend_pid} .*nightly import") as raised:
            await create(source_database.settings, GroupNames(group), 0.5)
        assert raised.value.exit_code == 75
        assert "not for the log" not in str(raised.value)
        assert slots(source_database) == []


async def test_a_slot_is_gone_when_it_was_given_up_however_long_the_source_takes(source_database: Database, group: str) -> None:
    def creators() -> list[tuple[int]]:
        return source_database.execute("SELECT active_pid FROM pg_replication_slots WHERE database = current_database()")

    async def creator() -> int:
        return creators()[0][0] if creators() else 0

    with open_transaction(source_database):
        creating = asyncio.create_task(create(source_database.settings, GroupNames(group), 0.5))
        process_id = await wait_until_async(creator, what="the process that makes the slot")
        os.kill(process_id, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(2.0, os.kill, process_id, signal.SIGCONT)
        with pytest.raises(SlotTimeoutError):
            await creating
        assert slots(source_database) == []


async def test_the_slot_of_a_copy_is_given_up_and_gone_as_well(source_database: Database) -> None:
    with open_transaction(source_database):
        with pytest.raises(SlotTimeoutError, match="nightly import"):
            await SnapshotKeeper.export_at_slot(source_database.settings, 0.5)

        async def is_gone() -> bool:
            return slots(source_database) == []

        await wait_until_async(is_gone, what="the temporary slot's end")


async def test_a_role_that_may_not_look_into_others_is_told_their_process(source_database: Database, group: str) -> None:
    role = f"plain_{uuid.uuid4().hex[:8]}"
    source_database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        with open_transaction(source_database) as transaction:
            settings = replace(source_database.settings, user=role)
            with pytest.raises(SlotTimeoutError, match=f"process {transaction.info.backend_pid} "):
                await create(settings, GroupNames(group), 0.5)
    finally:
        source_database.execute(f"DROP ROLE {role}")


async def test_a_prepared_transaction_is_named_although_no_process_holds_it(group: str) -> None:
    with PostgresServer({"max_prepared_transactions": "2"}) as server:
        database = server.create_database("shop")
        with database.connect() as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT pg_current_xact_id()")
            connection.execute("PREPARE TRANSACTION 'order 7'")
        with pytest.raises(SlotTimeoutError, match=r"prepared transaction 'order 7' .*ROLLBACK PREPARED"):
            await create(database.settings, GroupNames(group), 0.5)
        database.execute("ROLLBACK PREPARED 'order 7'")


def test_the_replicator_ends_with_75_and_makes_the_slot_at_the_next_start(replication: Group, nats_server: NatsServer) -> None:
    with (
        open_transaction(replication.source) as transaction,
        process(replication, nats_server, **{"slot-timeout": "1s"}) as ended,
    ):
        assert ended.wait() == 75
        assert f"process {transaction.info.backend_pid} " in ended.log()
        assert "slot-timeout" in ended.log()
        assert slots(replication.source) == []
    replication.replicate()
    assert slots(replication.source) == [(replication.names.slot,)]


def test_a_replicator_that_is_killed_while_it_waits_leaves_no_slot(replication: Group, nats_server: NatsServer) -> None:
    """The server would go on waiting, make the slot, and keep WAL for nobody."""
    with open_transaction(replication.source):
        with process(replication, nats_server) as killed:
            wait_until(lambda: slots(replication.source), what="the slot that is being made")
            killed.kill()
        wait_until(lambda: not slots(replication.source), what="the end of the slot that nobody waits for")


async def test_the_connection_that_a_replicator_has_lost_is_named_and_ended(source_database: Database, group: str) -> None:
    """The source believes that it is there: nothing told it otherwise."""
    names = GroupNames(group)
    source_database.execute(f"CREATE PUBLICATION {names.publication}")
    await create(source_database.settings, names, 60.0)
    lost = await WalSender.connect(source_database.settings, names.slot)
    source = await Source.connect(source_database.settings)
    try:
        await lost.start(names.slot, names.publication, LSN(0))
        slot = await find_slot(source, names)
        assert slot is not None
        await end_own_reader(source, slot, lost.process + 1)
        with pytest.raises(TransientError, match=f"process {lost.process} of the source, which served this replicator"):
            await end_own_reader(source, slot, lost.process)

        async def is_free() -> bool:
            found = await find_slot(source, names)
            return found is not None and found.active_pid is None

        await wait_until_async(is_free, what="a slot that nobody reads")
    finally:
        await source.close()
        await lost.close()


async def test_a_replication_connection_that_says_nothing_leaves_its_slot_soon(source_database: Database, group: str) -> None:
    """The server's own patience is a minute."""
    names = GroupNames(group)
    source_database.execute(f"CREATE PUBLICATION {names.publication}")
    await create(source_database.settings, names, 60.0)
    silent = await WalSender.connect(source_database.settings, names.slot, timeout_ms=300)
    try:
        await silent.start(names.slot, names.publication, LSN(0))
        source_database.execute("CREATE TABLE t ()")
        wait_until(lambda: active_slots(source_database, names) == [(None,)], what="a slot that nobody reads")
    finally:
        await silent.close()


def active_slots(database: Database, names: GroupNames) -> list[tuple[object, ...]]:
    return database.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [names.slot])


def test_commits_of_the_source_can_wait_for_one_group_by_its_name(replication: Group, nats_server: NatsServer) -> None:
    """``synchronous_standby_names`` names walsenders by their application_name."""
    replication.replicate()
    with process(replication, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        query = "SELECT s.application_name FROM pg_stat_replication s JOIN pg_replication_slots r ON r.active_pid = s.pid"
        found = replication.source.execute(f"{query} WHERE r.slot_name = %s", [replication.names.slot])
        assert found == [(replication.names.slot,)]
