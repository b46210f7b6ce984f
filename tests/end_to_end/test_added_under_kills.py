"""Tables are added to a running group under writes, and in every state of that something is killed: equal at the end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.ledger import Ledger, Phase
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.event_loop import EventLoopThread
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until

ROWS = 5_000
PAUSE_S = 0.01
DEADLINE_S = 180.0

STATES = ("ordered", "copying", "copied", "behind")
VICTIMS = ("replicator", "worker", "target")


class Load:
    """Writes into every table until it is told to stop: inserts, updates and deletes in one transaction."""

    def __init__(self, source: Database, tables: list[str]) -> None:
        self._source = source
        self._tables = tables
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.transactions = 0

    def create(self) -> None:
        """Every second one has no key, so that a change that is applied twice is seen."""
        for number, table in enumerate(self._tables):
            key = "PRIMARY KEY" if number % 2 == 0 else ""
            self._source.execute(f"CREATE TABLE {table} (id int {key}, v text)")
            if not key:
                self._source.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            self._source.execute(f"INSERT INTO {table} SELECT n, 'copied' FROM generate_series(1, {ROWS}) n")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        with self._source.connect(autocommit=False) as connection:
            while not self._stopping.wait(PAUSE_S):
                self.transactions += 1
                n = self.transactions
                for table in self._tables:
                    connection.execute(f"INSERT INTO {table} VALUES ({ROWS + n}, 'new')")
                    connection.execute(f"UPDATE {table} SET v = '{n}' WHERE id = {1 + n % ROWS}")
                    connection.execute(f"DELETE FROM {table} WHERE id = {ROWS + n - 20}")
                connection.commit()


class Looks:
    """What ledger and target say of a table that is being added."""

    def __init__(self, loop: EventLoopThread, ledger: Ledger, target: Database) -> None:
        self._loop = loop
        self._ledger = ledger
        self._target = target

    def phase(self, table: str) -> Phase | None:
        records = self._loop.run(self._ledger.load()).tables.values()
        return next((record.phase for record in records if record.table == table), None)

    def is_behind(self) -> bool:
        """False too while the target is being killed."""
        try:
            return self._target.execute("SELECT FROM pgsluice.applied WHERE catch_up <> ''") != []
        except psycopg.OperationalError:
            return False

    def has_joined(self, table: str) -> bool:
        try:
            is_there = self._target.execute("SELECT to_regclass(%s) IS NOT NULL", [table]) == [(True,)]
        except psycopg.OperationalError:
            return False
        return is_there and self.phase(table) is Phase.FINISHED_COPY and not self.is_behind()

    def wait_until_in(self, state: str, table: str) -> None:
        wait_until(lambda: self.is_in(state, table), deadline_s=DEADLINE_S, what=f"{table} is {state}")

    def wait_until_joined(self, table: str) -> None:
        wait_until(lambda: self.has_joined(table), deadline_s=DEADLINE_S, what=f"{table} joins", interval_s=0.1)

    def is_in(self, state: str, table: str) -> bool:
        """Or beyond it: a state may be short."""
        match state:
            case "ordered":
                return True
            case "copying":
                return self.phase(table) in (Phase.DATA_SYNC, Phase.FINISHED_COPY)
            case "copied":
                return self.phase(table) is Phase.FINISHED_COPY
            case _:
                return self.is_behind() or self.has_joined(table)


@contextmanager
def looking(nats: NatsServer, group: str, target: Database) -> Iterator[Looks]:
    loop = EventLoopThread("test-looks")
    client = loop.run(connect(nats.settings(), "test"))
    try:
        yield Looks(loop, Ledger(StateBucket(client, GroupNames(group))), target)
    finally:
        loop.run(disconnect(client))
        loop.close()


def are_equal(source: Database, target: Database, table: str) -> bool:
    query = f"SELECT count(*), sum(hashtextextended(id || ' ' || v, 0)) FROM {table}"
    return source.execute(query) == target.execute(query)


def add_and_kill(source: Database, target: Database, nats: NatsServer, group: str, kills: list[tuple[str, str]]) -> None:
    """Adds a table for each of ``kills``: in which state, and what is killed."""
    tables = ["goes_on", *(f"added_{number}" for number in range(len(kills)))]
    load = Load(source, tables)
    load.create()
    keys = configuration(group, source, target, nats, **{"copy-and-stream": True, "tables": "goes_on"})
    with GroupUnderTest(keys) as running, looking(nats, group, target) as looks, load:
        looks.wait_until_joined("goes_on")
        victims: dict[str, PgsluiceProcess | PostgresServer] = {
            "replicator": running.replicator,
            "worker": running.worker,
            "target": target.server,
        }
        for table, (state, victim) in zip(tables[1:], kills, strict=True):
            with PgsluiceProcess("tables", "add", table, "--no-wait", config=keys) as order:
                assert order.wait(DEADLINE_S) == 0, order.log()
            looks.wait_until_in(state, table)
            victims[victim].kill()
            victims[victim].start()
            looks.wait_until_joined(table)
        load.stop()
        for table in tables:
            wait_until(partial(are_equal, source, target, table), deadline_s=DEADLINE_S, what=f"{table} is equal")


@pytest.mark.long
def test_a_table_joins_whoever_is_killed_meanwhile(
    source_database: Database, target: Database, nats: NatsServer, group: str
) -> None:
    kills = [("copying", "replicator"), ("behind", "worker"), ("copied", "target")]
    add_and_kill(source_database, target, nats, group, kills)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_process_is_killed_in_every_state(
    source_database: Database, target: Database, nats: NatsServer, group: str
) -> None:
    add_and_kill(source_database, target, nats, group, list(itertools.product(STATES, VICTIMS)))
