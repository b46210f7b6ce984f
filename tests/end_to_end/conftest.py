"""Servers of a test's own, for those that kill, stop or turn back a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import Database, NatsServer, PostgresServer


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def source() -> Iterator[Database]:
    with PostgresServer() as server:
        yield server.create_database("source")


@pytest.fixture
def target() -> Iterator[Database]:
    with PostgresServer() as server:
        yield server.create_database("target")
