"""A table joins while the application writes to it: nothing of it is lost, and nobody waits for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
import pytest

from tests.end_to_end.group_under_test import configuration
from tests.replicated_group import Group
from tests.servers import NatsServer, PgsluiceProcess, PostgresServer
from tests.servers.postgres_binaries import NEWEST
from tests.waiting import wait_until

T = TypeVar("T")

IN_USE = "a table that joins or leaves is in use"
LONGEST_WAIT_S = 3.0  # LOCK_TIMEOUT_MS, and what a busy machine adds


@pytest.fixture(params=[16, NEWEST])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Also one of before spring 2025, which decodes an open transaction by what it knew of the publication at first."""
    with PostgresServer(version=request.param) as server:
        yield server


@pytest.fixture
def replication(server: PostgresServer, nats_server: NatsServer, group: str) -> Group:
    """A group that streams public.t; public.w is there too."""
    source = server.create_database("source")
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text); CREATE TABLE w (id bigint PRIMARY KEY, v text)")
    replication = Group(group, source, nats_server.settings())
    replication.replicate(tables=("t",))
    return replication


def taking(table: str, replication: Group, nats: NatsServer) -> dict[str, Any]:
    """The configuration of a replicator that ``table`` joins at its start."""
    return configuration(replication.name, replication.source, None, nats, tables=f"t,{table}", **{"without-copy": table})


def join_beside_a_writer(
    replication: Group, nats: NatsServer, table: str, turn: Callable[[PgsluiceProcess], T], *, written: str = ""
) -> T:
    """``table`` joins at the start of a replicator, while a transaction is open that has written to it, or to ``written``, and
    does so again after ``turn``, whose result is returned. One row follows. All is in the stream then."""
    source, written = replication.source, written or table
    with source.connect(autocommit=False) as writer:
        writer.execute(f"INSERT INTO {written} VALUES (1, 'before')".encode())
        with PgsluiceProcess("replicator", config=taking(table, replication, nats)) as replicator:
            result = turn(replicator)
            writer.execute(f"INSERT INTO {written} VALUES (2, 'after')".encode())
            writer.commit()
            replicator.wait_for_log("replicating ")
            source.execute(f"INSERT INTO {written} VALUES (100, 'followed')")
            replicator.terminate()
            assert replicator.wait() == 0
    replication.replicate(tables=("t", table))
    return result


def test_a_table_joins_when_its_writers_are_done_and_no_later_row_is_lost(replication: Group, nats_server: NatsServer) -> None:
    with replication.source.connect() as application:

        def waits(replicator: PgsluiceProcess) -> list[float]:
            replicator.wait_for_log(IN_USE)
            return [insert(application, number) for number in range(10, 30)]

        assert max(join_beside_a_writer(replication, nats_server, "w", waits)) < LONGEST_WAIT_S
    assert replication.audit().rows == {"public.w insert": 1}


def test_no_row_is_lost_behind_a_transaction_that_was_open_when_its_table_joined(
    replication: Group, nats_server: NatsServer
) -> None:
    """Nobody else writes to the table meanwhile, so what such a transaction knew is all that the server knows of it."""

    def has_joined(replicator: PgsluiceProcess) -> bool:
        wait_until(lambda: "trying again" in replicator.log() or "replicating " in replicator.log(), what="the table's turn")
        return bool(replication.source.execute("SELECT FROM pg_publication_rel WHERE prrelid = 'w'::regclass"))

    rows = 2 if join_beside_a_writer(replication, nats_server, "w", has_joined) else 1
    assert replication.audit().rows == {"public.w insert": rows}


@pytest.mark.parametrize("server", [16], indirect=True)
def test_a_partitioned_table_waits_for_whoever_writes_to_a_partition_by_its_name(
    replication: Group, nats_server: NatsServer
) -> None:
    replication.source.execute("CREATE TABLE p (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    replication.source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (200)")
    join_beside_a_writer(replication, nats_server, "p", lambda replicator: replicator.wait_for_log(IN_USE), written="p1")
    assert replication.audit().rows == {"public.p insert": 1}


@pytest.mark.parametrize("server", [NEWEST], indirect=True)
def test_autovacuum_gives_way_to_a_table_that_joins(server: PostgresServer, replication: Group, nats_server: NatsServer) -> None:
    """It would take more than a minute."""
    source = replication.source
    slow = "autovacuum_vacuum_threshold = 1, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
    source.execute(f"ALTER TABLE w SET ({slow}); INSERT INTO w SELECT n, repeat('x', 100) FROM generate_series(1, 100000) n")
    source.execute("DELETE FROM w WHERE id % 2 = 0")
    with server.connect() as administrator:
        administrator.execute("ALTER SYSTEM SET autovacuum_naptime = '1s'")
        administrator.execute("SELECT pg_reload_conf()")
    vacuums = "SELECT FROM pg_stat_progress_vacuum WHERE relid = 'w'::regclass"
    wait_until(lambda: source.execute(vacuums), what="the autovacuum")
    with PgsluiceProcess("replicator", config=taking("w", replication, nats_server)) as replicator:
        replicator.wait_for_log("replicating ")
        replicator.terminate()
        assert replicator.wait() == 0
        assert "trying again" not in replicator.log()


@pytest.mark.parametrize("server", [NEWEST], indirect=True)
def test_tables_that_come_together_join_together_and_one_that_is_in_use_holds_up_none_of_them(
    replication: Group, nats_server: NatsServer
) -> None:
    source, others = replication.source, [f"{name}_too" for name in ("a", "b", "c", "v", "x")]
    for name in others:
        source.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY)")
    config = configuration(replication.name, source, None, nats_server, tables="t")

    def add(*tables: str) -> None:
        with PgsluiceProcess("tables", "add", *tables, "--without-copy", "--no-wait", config=config) as order:
            assert order.wait() == 0

    def published() -> set[str]:
        return {name for (name,) in source.execute("SELECT tablename::text FROM pg_publication_tables")}

    with PgsluiceProcess("replicator", config=config) as replicator, source.connect(autocommit=False) as writer:
        replicator.wait_for_log("replicating ")
        add(*others[:3])
        wait_until(lambda: published() == {"t", *others[:3]}, what="tables that join")
        assert replicator.log().count("publication is altered") == 1
        writer.execute("INSERT INTO w VALUES (1, 'open')")
        add("w", *others[3:])
        wait_until(lambda: published() == {"t", *others}, what="tables that join beside one in use")
        assert replicator.log().count(IN_USE) < 3  # of eight times
        writer.commit()
        wait_until(lambda: "w" in published(), what="the table that was in use")
        source.execute("INSERT INTO w VALUES (2, 'followed')")
        replicator.terminate()
        assert replicator.wait() == 0
        assert " ERROR " not in replicator.log()


def insert(application: psycopg.Connection[Any], number: int) -> float:
    """Seconds that it took."""
    began = time.monotonic()
    application.execute("INSERT INTO w VALUES (%s, 'meanwhile')", [number])
    return time.monotonic() - began
