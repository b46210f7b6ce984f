"""The process: killed, stopped, starved and cut off, it publishes every change once."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.errors import TransientError
from tests.end_to_end.group_under_test import configuration
from tests.replicated_group import Group
from tests.servers import NatsServer, PgsluiceProcess, PostgresServer
from tests.servers.child import pause
from tests.servers.losing_proxy import LosingProxy
from tests.waiting import wait_until

INCOMPRESSIBLE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {kilobytes} * 32))"


@contextmanager
def process(replication: Group, nats: NatsServer, **keys: object) -> Iterator[PgsluiceProcess]:
    """A running replicator; its log is printed when the test fails."""
    configured = configuration(replication.name, replication.source, None, nats, **keys)
    with PgsluiceProcess("replicator", config=configured) as replicator:
        try:
            yield replicator
        except BaseException:
            print(replicator.log()[-8000:])
            raise


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    """A broker of its own, to be stopped."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def own_broker(replication: Group, nats: NatsServer) -> Group:
    return Group(replication.name, replication.source, nats.settings())


@contextmanager
def load(replication: Group, seed: int) -> Iterator[list[int]]:
    """Transactions of 1 to 3,000 rows until the block ends; gives the list that their sizes go to."""
    stopping, sizes, choose = threading.Event(), list[int](), random.Random(seed)

    def write() -> None:
        with replication.source.connect() as connection:
            while not stopping.wait(choose.uniform(0, 0.02)):
                rows = choose.choice((1, 2, 30, 3000))
                connection.execute(
                    "INSERT INTO t SELECT %s + n, repeat('v', 80) FROM generate_series(1, %s) n", [sum(sizes), rows]
                )
                sizes.append(rows)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield sizes
    finally:
        stopping.set()
        thread.join()


def published_changes(replication: Group) -> int:
    return replication.audit().changes


def test_killed_in_the_middle_of_everything_it_publishes_each_change_once(replication: Group, nats_server: NatsServer) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    choose = random.Random(seed)
    replication.replicate()
    with process(replication, nats_server) as replicator:
        with load(replication, seed) as sizes:
            for _ in range(10):
                threading.Event().wait(choose.uniform(0.05, 0.8))
                replicator.kill()
                replicator.start()
        wait_until(lambda: published_changes(replication) == sum(sizes), deadline_s=60, what="every change in the stream")
        replicator.terminate()
        assert replicator.wait() == 0


def test_a_full_stream_is_waited_for_and_a_group_of_chunks_begun_again(own_broker: Group, nats: NatsServer) -> None:
    own_broker.replicate(max_bytes=4 << 20)
    fits, does_not_fit = (INCOMPRESSIBLE.format(kilobytes=kilobytes) for kilobytes in (300, 6 * 1024))
    own_broker.source.execute(f"INSERT INTO t VALUES (1, {fits}), (2, {does_not_fit})")
    with process(own_broker, nats, **{"stream-max-bytes": 4 << 20}) as replicator:
        replicator.wait_for_log("stream is full")
        replicator.kill()
    audit = own_broker.audit()
    assert (audit.changes, audit.is_settled) == (1, False)
    own_broker.replicate(max_bytes=1 << 30)
    audit = own_broker.audit()
    assert (audit.changes, audit.is_settled) == (2, True)
    assert audit.abandoned_chunks > 0


def test_a_full_stream_takes_messages_again_when_there_is_room(own_broker: Group, nats: NatsServer) -> None:
    own_broker.replicate(max_bytes=2 << 20)
    row = INCOMPRESSIBLE.format(kilobytes=100)
    with process(own_broker, nats, **{"stream-max-bytes": 2 << 20}) as replicator:
        own_broker.source.execute(f"INSERT INTO t SELECT n, {row} FROM generate_series(1, 30) n")
        replicator.wait_for_log("stream is full")
        first = own_broker.audit()
        assert 0 < first.changes < 30
        last_sequence = own_broker.stream_state().last_sequence
        own_broker.with_broker(lambda stream, _: stream.purge_up_to(last_sequence - 1))
        wait_until(lambda: own_broker.last_message().headers["Pgsluice-Last"].endswith(":30"), what="the rest of the rows")


def test_a_broker_that_hangs_does_not_cost_the_replication_connection(group: str, nats: NatsServer) -> None:
    with PostgresServer({"wal_sender_timeout": "2s"}) as server:
        database = server.create_database("source")
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        replication = Group(group, database, nats.settings())
        replication.replicate()
        with process(replication, nats) as replicator:
            replicator.wait_for_log("replicating")
            [(walsender,)] = database.execute("SELECT active_pid FROM pg_replication_slots")
            nats.pause()
            try:
                database.execute("INSERT INTO t SELECT n, repeat('v', 500) FROM generate_series(1, 60000) n")
                threading.Event().wait(9)
                assert database.execute("SELECT active_pid FROM pg_replication_slots") == [(walsender,)]
            finally:
                nats.resume()
            wait_until(lambda: published_changes(replication) == 60_000, what="every change in the stream")
            assert replicator.memory_bytes() < 150 << 20
            assert "trying again" not in replicator.log()


def test_a_table_that_is_altered_while_the_broker_hangs_does_not_cost_the_replication_connection(
    own_broker: Group, nats: NatsServer
) -> None:
    """What workers have to know of the table is written before the first row of it is published, and waits for NATS."""
    own_broker.replicate()
    with process(own_broker, nats) as replicator:
        replicator.wait_for_log("replicating")
        walsender = reader_of_slot(own_broker)
        nats.pause()
        try:
            own_broker.source.execute("ALTER TABLE t ADD w int; INSERT INTO t VALUES (1, 'v', 2)")
            replicator.wait_for_log("definitions cannot be stored yet, waiting for NATS")
        finally:
            nats.resume()
        wait_until(lambda: published_changes(own_broker) == 1, what="the row in the stream")
        [table] = own_broker.with_broker(lambda _, bucket: load_tables(bucket))
        assert [column.name for column in table.columns] == ["id", "v", "w"]
        assert reader_of_slot(own_broker) == walsender
        assert "trying again" not in replicator.log()


def reader_of_slot(replication: Group) -> int:
    """The process of the source that serves the replicator."""
    [(pid,)] = replication.source.execute(
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [replication.names.slot]
    )
    return int(str(pid))


def test_a_source_that_is_killed_and_comes_back_loses_nothing(group: str, nats_server: NatsServer) -> None:
    with PostgresServer() as server:
        database = server.create_database("source")
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        replication = Group(group, database, nats_server.settings())
        replication.replicate()
        with process(replication, nats_server) as replicator:
            replicator.wait_for_log("replicating")
            for first in (1, 10_001):
                database.execute(f"INSERT INTO t SELECT n, 'v' FROM generate_series({first}, {first + 9999}) n")
                server.kill()
                server.start()
            wait_until(lambda: published_changes(replication) == 20_000, what="every change in the stream")
            assert replicator.is_running


def test_a_connection_that_the_replicator_alone_has_lost_does_not_keep_the_slot_from_it(
    replication: Group, nats_server: NatsServer
) -> None:
    """The source would believe for 20 s that it is there."""
    replication.replicate()
    with LosingProxy(replication.source.server.port) as proxy, process(replication, nats_server, port=proxy.port) as replicator:
        replicator.wait_for_log("replicating")
        lost = reader_of_slot(replication)
        proxy.tell_clients()
        replicator.wait_for_log(f"process {lost} of the source, which served this replicator over a connection that was lost")
        replication.source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_until(lambda: published_changes(replication) == 1, what="the change in the stream")
        assert "wal_sender_timeout" not in replicator.log()


def test_a_walsender_that_is_terminated_is_replaced(replication: Group, nats_server: NatsServer) -> None:
    replication.replicate()
    with process(replication, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        replication.source.execute("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active_pid > 0")
        replication.source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_until(lambda: published_changes(replication) == 1, what="the change in the stream")
        assert replicator.is_running


def test_a_broker_that_is_killed_and_comes_back_gets_each_change_once(own_broker: Group, nats: NatsServer) -> None:
    own_broker.replicate()
    with process(own_broker, nats) as replicator:
        with load(own_broker, seed=1) as sizes:
            for _ in range(3):
                threading.Event().wait(0.7)
                nats.kill()
                nats.start()
        wait_until(lambda: published_changes(own_broker) == sum(sizes), deadline_s=60, what="every change in the stream")
        assert replicator.is_running


@pytest.mark.parametrize("broker_runs", [True, False])
def test_sigterm_ends_it_with_0_whether_or_not_the_broker_answers(own_broker: Group, nats: NatsServer, broker_runs: bool) -> None:
    own_broker.replicate()
    with process(own_broker, nats) as replicator:
        replicator.wait_for_log("replicating")
        if not broker_runs:
            nats.kill()
        own_broker.source.execute("INSERT INTO t VALUES (1, 'a')")
        replicator.terminate()
        assert replicator.wait(30) == 0


def test_an_idle_slot_follows_the_wal_of_other_tables_while_it_runs(replication: Group, nats_server: NatsServer) -> None:
    replication.replicate()
    with process(replication, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        with replication.source.server.connect() as elsewhere:
            elsewhere.execute("CREATE TABLE IF NOT EXISTS busy (v int)")
            elsewhere.execute("INSERT INTO busy SELECT generate_series(1, 10000)")
            [(lsn,)] = elsewhere.execute("SELECT pg_current_wal_lsn()").fetchall()
            wait_until(
                lambda: (
                    elsewhere.execute(
                        "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s",
                        [lsn, replication.names.slot],
                    ).fetchone()
                    == (True,)
                ),
                what="the slot behind the other tables' WAL",
            )


def test_a_second_replicator_waits_and_then_names_the_process_that_holds_the_slot(
    replication: Group, nats_server: NatsServer
) -> None:
    replication.replicate()
    with process(replication, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        [(pid,)] = replication.source.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [replication.names.slot]
        )
        with pytest.raises(TransientError, match=f"in use by process {pid} "):
            replication.replicate(connect_timeout_s=1.0)


def test_a_slot_that_is_lost_while_it_runs_stops_it(group: str, nats: NatsServer) -> None:
    with PostgresServer(
        {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB", "wal_sender_timeout": "3s"}
    ) as server:
        database = server.create_database("source")
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY); CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.t (v text)")
        replication = Group(group, database, nats.settings())
        replication.replicate()
        with process(replication, nats) as replicator:
            replicator.wait_for_log("replicating")
            pause(replicator.pid)
            for _ in range(6):  # not of a published table: a walsender whose socket is full never ends, and the slot with it
                database.execute("INSERT INTO elsewhere.t SELECT repeat('x', 100) FROM generate_series(1, 20000)")
                database.execute("SELECT pg_switch_wal()")
            database.execute("CHECKPOINT")
            os.kill(replicator.pid, signal.SIGCONT)
            assert replicator.wait() == 70
            assert "is lost" in replicator.log()


@pytest.mark.long
def test_a_source_that_falls_silent_is_given_up_and_found_again(replication: Group, nats_server: NatsServer) -> None:
    replication.replicate()
    with process(replication, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        [(walsender,)] = replication.source.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [replication.names.slot]
        )
        pause(walsender)
        try:
            replicator.wait_for_log("the source has been silent", deadline_s=60)
        finally:
            os.kill(walsender, signal.SIGCONT)
        replication.source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_until(lambda: published_changes(replication) == 1, what="the change in the stream")
