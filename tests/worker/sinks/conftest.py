"""What tests of several sinks stand on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from pgsluice.worker.sinks.postgres.own.own_tables import ensure_tables
from tests.servers import Database, PostgresServer
from tests.servers.database_pool import DatabasePool


@pytest.fixture(scope="session")
def trusted_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One certificate. A machine trusts more than a hundred, and to read those takes longer than most tests of sinks that speak
    HTTP."""
    path = str(tmp_path_factory.mktemp("trusted") / "ca.pem")
    trustme.CA().cert_pem.write_to_path(path)
    return path


@pytest.fixture(autouse=True)
def trusted_by_the_machine(trusted_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For OpenSSL, in this process and those that it starts."""
    monkeypatch.setenv("SSL_CERT_FILE", trusted_file)
    monkeypatch.setenv("SSL_CERT_DIR", str(Path(trusted_file).with_name("none")))


@pytest.fixture
def authority() -> trustme.CA:
    """Issues certificates that only ``ca_file`` vouches for."""
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


@pytest.fixture(scope="session")
def target_databases(postgres: PostgresServer) -> Iterator[DatabasePool]:
    """With the worker's own tables: making them costs as much as most tests do."""
    pool = DatabasePool(postgres, ensure_tables)
    yield pool
    pool.close()


@pytest.fixture
def target_database(target_databases: DatabasePool) -> Iterator[Database]:
    """Workers were there before, of whom it remembers nothing. A test in which they never were drops schema pgsluice first."""
    database = target_databases.take(f"target_{uuid.uuid4().hex[:12]}")
    yield database
    target_databases.give_back(database)
