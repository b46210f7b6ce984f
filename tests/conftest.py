"""Servers and databases that tests share; a test that stops or reconfigures a server starts one of its own.

Tests come in rings, told apart by what they use (``tests/runs/rings.py``).
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from tests.borrowed_spark import environment_restored
from tests.replicated_group import Group
from tests.search_servers import EVERY
from tests.servers import Database, NatsCluster, NatsServer, PgsluiceProcess, PostgresServer
from tests.servers.child import PrivateDirectory, unprivileged_user
from tests.servers.elasticsearch import OneElasticsearch
from tests.servers.kafka import RealKafka
from tests.servers.opensearch import FakeOpenSearch, RealOpenSearch, SearchServer
from tests.servers.postgres_binaries import NEWEST, BinariesUnavailableError, binaries

pytest_plugins = [
    "tests.runs.progress",
    "tests.runs.failures",
    "tests.runs.garbage",
    "tests.runs.leftovers",
    "tests.runs.rings",
    "tests.runs.schedule",
]

PgsluiceProcess.may_fork = True

# Continuous integration and containers set it, users do not: it hides what a lost reader of standard error does to an exit code.
os.environ.pop("PYTHONUNBUFFERED", None)

# What was started under nohup ignores hang-ups, and what a shell started in the background Ctrl-C and Ctrl-\, and so would every
# process that it starts; a handler is not passed on.
for _number, _handler in (
    (signal.SIGHUP, lambda *_: None),
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# A busy machine is slow, not wrong; pytest-timeout ends what hangs.
settings.register_profile("few", deadline=None, max_examples=25)
settings.register_profile("many", deadline=None, max_examples=1000)  # make test-long
settings.load_profile("few")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_of(postgres: PostgresServer) -> Iterator[Callable[[int], PostgresServer]]:
    """One server of each major version that is asked for. A version that cannot be fetched skips the test, but not in CI."""
    servers = {NEWEST: postgres}
    with ExitStack() as running:

        def server_of(version: int) -> PostgresServer:
            if version not in servers:
                try:
                    binaries(version)
                except BinariesUnavailableError as error:
                    if os.environ.get("CI"):
                        raise
                    pytest.skip(str(error))
                servers[version] = running.enter_context(PostgresServer(version=version))
            return servers[version]

        yield server_of


@pytest.fixture(scope="session")
def german() -> Iterator[PostgresServer]:
    """A server that knows the locale de_DE, which the machine need not have."""
    directory = PrivateDirectory("locale", unprivileged_user())
    try:
        command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(directory.path / "de_DE.utf8")]
        if shutil.which("localedef") is None or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("localedef, or the sources of the locale de_DE, are not installed")
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("LOCPATH", str(directory.path))
            server = PostgresServer()
            server.start()
        try:
            yield server
        finally:
            server.close()
    finally:
        directory.remove()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def nats_cluster() -> Iterator[NatsCluster]:
    """A test that kills or pauses a node brings it back."""
    with NatsCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_kafka() -> Iterator[RealKafka]:
    """Shared: each test takes names of its own for its topics. A test that asks for it has the marker kafka."""
    with RealKafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def fake_opensearch() -> Iterator[FakeOpenSearch]:
    """Shared: each test takes names of its own for its indices."""
    with FakeOpenSearch() as server:
        yield server


@pytest.fixture(scope="session")
def real_opensearch() -> Iterator[RealOpenSearch]:
    """As ``fake_opensearch``. A test that asks for it by this name has the marker search_real."""
    with RealOpenSearch() as server:
        yield server


@pytest.fixture(scope="session")
def elasticsearch() -> Iterator[OneElasticsearch]:
    """As ``fake_opensearch``. A test that asks for it by this name has the marker elasticsearch."""
    with OneElasticsearch() as server:
        yield server


@pytest.fixture(scope="session", params=EVERY)
def search_server(request: pytest.FixtureRequest) -> SearchServer:
    """All of them, one after the other; real ones in ``make test-search-real`` and ``make test-elasticsearch`` only."""
    server: SearchServer
    match request.param:
        case int(version):
            server = request.getfixturevalue("elasticsearch").of(version)
        case "opensearch":
            server = request.getfixturevalue("real_opensearch")
        case _:
            server = request.getfixturevalue("fake_opensearch")
    return server


@pytest.fixture
def source_database(postgres: PostgresServer) -> Iterator[Database]:
    database = postgres.create_database(f"source_{uuid.uuid4().hex[:12]}")
    yield database
    database.drop()


@pytest.fixture
def target_database(postgres: PostgresServer) -> Iterator[Database]:
    database = postgres.create_database(f"target_{uuid.uuid4().hex[:12]}")
    yield database
    database.drop()


@pytest.fixture
def ordinary_role(target_database: Database) -> Iterator[str]:
    """A role of the target that may make what is the worker's own, and may not set session_replication_role."""
    name = f"ordinary_{target_database.dbname}"
    target_database.execute("DROP SCHEMA IF EXISTS pgsluice CASCADE")
    target_database.execute(f"CREATE ROLE {name} LOGIN; GRANT CREATE, TEMPORARY ON DATABASE {target_database.dbname} TO {name}")
    yield name
    target_database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture(scope="module")
def spark_environment() -> Iterator[None]:
    """For tests that start Spark in this process."""
    with environment_restored():
        yield


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[str]:
    """A group name no other test uses. Its streams go with the test: thousands would keep the shared server busy, and their files
    take minutes to remove at the end."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    shared = request.getfixturevalue("nats_server") if "nats_server" in request.fixturenames else None
    yield name
    if shared is not None:
        shared.delete_streams(name)


@pytest.fixture
def replication(group: str, source_database: Database, nats_server: NatsServer) -> Group:
    """A group whose source has one table, public.t (id, v)."""
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    return Group(group, source_database, nats_server.settings())


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """Of what a program sets up that runs in the tests' own process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
