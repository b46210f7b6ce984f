"""A broker, a source or a group that is put back under a worker: the end is equal tables, or a stop that stays."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
from pathlib import Path

import pytest

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until

DEADLINE_S = 120.0


class PowerCut:
    """What source and broker had on their disks at some moment, to be put back later: the broker's store, and of the source the
    slot's state, which PostgreSQL saves now and then only. Both are stopped while it is taken and put back."""

    def __init__(self, nats: NatsServer, source: PostgresServer, slot: str, directory: Path) -> None:
        self._nats = nats
        self._state = source.data_directory / "pg_replslot" / slot / "state"
        self._saved_store, self._saved_state = directory / "store", directory / "state"
        self._servers = (nats, source)
        for server in self._servers:
            server.stop()
        shutil.copytree(nats.store, self._saved_store)
        shutil.copy2(self._state, self._saved_state)
        for server in self._servers:
            server.start()

    def happen(self, *, store: bool = True, slot: bool = True) -> None:
        """``store`` and ``slot`` are what is put back."""
        for server in self._servers:
            server.stop()
        if store:
            shutil.rmtree(self._nats.store)
            shutil.copytree(self._saved_store, self._nats.store)
        if slot:
            self._state.write_bytes(self._saved_state.read_bytes())
        for server in self._servers:
            server.start()


@pytest.fixture
def source(source: Database) -> Database:
    source.execute("CREATE TABLE journal (id bigint, note text); ALTER TABLE journal REPLICA IDENTITY FULL")
    return source


def insert(source: Database, first: int, last: int) -> None:
    """Each row in a transaction of its own; a second one would stay, for the table has no key."""
    with source.connect() as connection:
        for number in range(first, last + 1):
            connection.execute("INSERT INTO journal VALUES (%s, 'n')", [number])


def ids(database: Database) -> list[int]:
    return [number for (number,) in database.execute("SELECT id FROM journal ORDER BY id")]


def wait_for_equal(source: Database, target: Database) -> None:
    def is_equal() -> bool:
        there = target.execute("SELECT FROM pg_class WHERE relname = 'journal'") and ids(target) == ids(source)
        return bool(there)

    wait_until(is_equal, deadline_s=DEADLINE_S, what="equal tables", interval_s=0.2)


def stop(under_test: GroupUnderTest) -> None:
    for process in (under_test.replicator, under_test.worker):
        process.terminate()
        assert process.wait() == 0


@pytest.mark.timeout(600)
def test_after_a_power_cut_the_worker_finds_its_place_or_both_stop_and_stay_stopped(
    source: Database, target_database: Database, nats: NatsServer, group: str, tmp_path: Path
) -> None:
    target = target_database
    with GroupUnderTest(configuration(group, source, target, nats)) as under_test:
        under_test.replicator.wait_for_log("replicating")
        insert(source, 1, 30)
        wait_for_equal(source, target)
        stop(under_test)
        cut = PowerCut(nats, source.server, GroupNames(group).slot, tmp_path)
        under_test.replicator.start()
        under_test.worker.start()
        under_test.replicator.wait_for_log("replicating")
        for first in (31, 61):  # in a message each, at least; they come again in one
            insert(source, first, first + 29)
            wait_for_equal(source, target)
        stop(under_test)

        cut.happen()
        insert(source, 91, 180)
        under_test.worker.start()
        under_test.worker.wait_for_log("which publishes them again if the source still has them")
        assert ids(target) == list(range(1, 91))
        under_test.replicator.start()
        wait_for_equal(source, target)
        under_test.worker.wait_for_log("the applied changes are at another sequence of the stream")
        stop(under_test)

        cut.happen(slot=False)
        insert(source, 181, 200)
        under_test.replicator.start()
        assert under_test.replicator.wait(DEADLINE_S) == 70
        assert "the broker lost data" in under_test.replicator.log()
        cut.happen(store=False)  # now slot and stream agree: nobody would find again what was found
        under_test.replicator.start()
        assert under_test.replicator.wait(DEADLINE_S) == 70
        assert "found at" in under_test.replicator.log()
        for _ in range(2):
            under_test.worker.start()
            assert under_test.worker.wait(DEADLINE_S) == 70
        assert "and the replicator stopped: replication slot" in under_test.worker.log()
        assert ids(target) == list(range(1, 181))


@pytest.mark.timeout(600)
def test_a_group_that_is_dropped_and_made_again_under_a_worker_stops_it(
    source: Database, target_database: Database, nats: NatsServer, group: str
) -> None:
    keys = configuration(group, source, target_database, nats)
    with GroupUnderTest(keys) as under_test:
        under_test.replicator.wait_for_log("replicating")
        insert(source, 1, 5)
        wait_for_equal(source, target_database)
        applied = asyncio.run(last_sequence(nats, group))
        under_test.worker.pause_all()  # else it would miss its lease before it sees a message
        under_test.replicator.kill()
        with PgsluiceProcess("drop", "--yes", config=keys) as drop:
            assert drop.wait() == 0
        under_test.replicator.start()
        wait_until(lambda: under_test.replicator.log().count("replicating") == 2, what="the new start")
        new = itertools.count(101)

        def is_further() -> bool:
            """One message may take many commits."""
            number = next(new)
            insert(source, number, number)
            return asyncio.run(last_sequence(nats, group)) > applied

        wait_until(is_further, what="messages after those that are applied")
        under_test.worker.signal_all(signal.SIGCONT)
        assert under_test.worker.wait(DEADLINE_S) in (70, 75)
        under_test.worker.start()
        assert under_test.worker.wait(DEADLINE_S) == 70
        assert "created again" in under_test.worker.log()
        assert ids(target_database) == list(range(1, 6))


async def last_sequence(nats: NatsServer, group: str) -> int:
    """0 while there is no stream."""
    async with connected(nats.settings(), "test") as client:
        state = await ChangeStream(client, GroupNames(group)).state()
        return 0 if state is None else state.last_sequence
