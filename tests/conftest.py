"""Servers and databases that tests share; a test that stops or reconfigures a server starts one of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.servers import Database, NatsServer, PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


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
def group() -> str:
    """A group name no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
