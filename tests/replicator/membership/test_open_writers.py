"""A table joins while the application writes to it: nothing of it is lost, and nobody waits for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.end_to_end.group_under_test import configuration
from tests.replicated_group import Group
from tests.servers import NatsServer, PgsluiceProcess, PostgresServer
from tests.servers.postgres_binaries import NEWEST
from tests.waiting import wait_until

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


def taking_w(replication: Group, nats: NatsServer) -> dict[str, Any]:
    """The configuration of a replicator that public.w joins at its start."""
    return configuration(replication.name, replication.source, None, nats, tables="t,w", **{"without-copy": "w"})


def test_a_table_joins_when_its_writers_are_done_and_no_later_row_is_lost(replication: Group, nats_server: NatsServer) -> None:
    source, config = replication.source, taking_w(replication, nats_server)
    with source.connect(autocommit=False) as writer, source.connect() as application:
        writer.execute("INSERT INTO w VALUES (1, 'before')")
        with PgsluiceProcess("replicator", config=config) as replicator:
            replicator.wait_for_log("a table that joins or leaves is in use")
            waits = [insert(application, number) for number in range(10, 30)]
            writer.execute("INSERT INTO w VALUES (2, 'after')")
            writer.commit()
            replicator.wait_for_log("replicating")
            application.execute("INSERT INTO w VALUES (100, 'followed')")
            replicator.terminate()
            assert replicator.wait() == 0
    assert max(waits) < LONGEST_WAIT_S
    replication.replicate(tables=("t", "w"))
    assert replication.audit().rows == {"public.w insert": 1}


def test_no_row_is_lost_behind_a_transaction_that_was_open_when_its_table_joined(
    replication: Group, nats_server: NatsServer
) -> None:
    """Nobody else writes to the table meanwhile, so what such a transaction knew is all that the server knows of it."""
    source, config = replication.source, taking_w(replication, nats_server)
    with source.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO w VALUES (1, 'before')")
        with PgsluiceProcess("replicator", config=config) as replicator:
            wait_until(lambda: "trying again" in replicator.log() or "replicating " in replicator.log(), what="the table's turn")
            has_joined = bool(source.execute("SELECT FROM pg_publication_rel WHERE prrelid = 'w'::regclass"))
            writer.execute("INSERT INTO w VALUES (2, 'after')")
            writer.commit()
            replicator.wait_for_log("replicating ")
            source.execute("INSERT INTO w VALUES (100, 'followed')")
            replicator.terminate()
            assert replicator.wait() == 0
    replication.replicate(tables=("t", "w"))
    assert replication.audit().rows == {"public.w insert": 2 if has_joined else 1}


@pytest.mark.parametrize("server", [16], indirect=True)
def test_a_partitioned_table_waits_for_whoever_writes_to_a_partition_by_its_name(
    replication: Group, nats_server: NatsServer
) -> None:
    source = replication.source
    source.execute("CREATE TABLE p (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (200)")
    config = configuration(replication.name, source, None, nats_server, tables="t,p", **{"without-copy": "p"})
    with source.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO p1 VALUES (1, 'before')")
        with PgsluiceProcess("replicator", config=config) as replicator:
            replicator.wait_for_log("a table that joins or leaves is in use")
            writer.execute("INSERT INTO p1 VALUES (2, 'after')")
            writer.commit()
            replicator.wait_for_log("replicating ")
            source.execute("INSERT INTO p1 VALUES (100, 'followed')")
            replicator.terminate()
            assert replicator.wait() == 0
    replication.replicate(tables=("t", "p"))
    assert replication.audit().rows == {"public.p insert": 1}


@pytest.mark.parametrize("server", [NEWEST], indirect=True)
def test_autovacuum_gives_way_to_a_table_that_joins(server: PostgresServer, replication: Group, nats_server: NatsServer) -> None:
    """It would take more than a minute."""
    source, config = replication.source, taking_w(replication, nats_server)
    slow = "autovacuum_vacuum_threshold = 1, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
    source.execute(f"ALTER TABLE w SET ({slow}); INSERT INTO w SELECT n, repeat('x', 100) FROM generate_series(1, 100000) n")
    source.execute("DELETE FROM w WHERE id % 2 = 0")
    with server.connect() as administrator:
        administrator.execute("ALTER SYSTEM SET autovacuum_naptime = '1s'")
        administrator.execute("SELECT pg_reload_conf()")
    vacuums = "SELECT FROM pg_stat_progress_vacuum WHERE relid = 'w'::regclass"
    wait_until(lambda: source.execute(vacuums), what="the autovacuum")
    with PgsluiceProcess("replicator", config=config) as replicator:
        replicator.wait_for_log("replicating ")
        replicator.terminate()
        assert replicator.wait() == 0
        assert "trying again" not in replicator.log()


def insert(application: psycopg.Connection[Any], number: int) -> float:
    """Seconds that it took."""
    began = time.monotonic()
    application.execute("INSERT INTO w VALUES (%s, 'meanwhile')", [number])
    return time.monotonic() - began
