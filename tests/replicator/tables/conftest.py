"""Groups that are made of what a test, or all tests of a module, ask for."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.replicator.tables.streaming_group import StreamingGroup
from tests.servers import Database, NatsServer, PostgresServer

MakeGroup = Callable[..., StreamingGroup]


@pytest.fixture
def make_group(group: str, source_database: Database, nats_server: NatsServer) -> Iterator[MakeGroup]:
    """Makes the test's one group; keyword arguments are keys of its configuration."""
    with group_maker(group, source_database, nats_server) as make:
        yield make


@pytest.fixture(scope="module")
def make_shared_group(postgres: PostgresServer, nats_server: NatsServer) -> Iterator[MakeGroup]:
    """The same for groups that all tests of a module share, each with tables of its own: what a start of Spark copies at once
    costs hardly more than one table."""
    with _maker_in_own_databases(postgres, nats_server) as make:
        yield make


@contextmanager
def _maker_in_own_databases(postgres: PostgresServer, nats: NatsServer) -> Iterator[MakeGroup]:
    """Each group that is made has a source of its own."""
    databases: list[Database] = []
    with ExitStack() as open_makers:

        def make(**keys: Any) -> StreamingGroup:
            name = uuid.uuid4().hex[:12]
            databases.append(postgres.create_database(f"source_{name}"))
            return open_makers.enter_context(group_maker(f"test-{name}", databases[-1], nats))(**keys)

        yield make
    for database in databases:
        database.drop()


@contextmanager
def group_maker(name: str, source: Database, nats: NatsServer) -> Iterator[MakeGroup]:
    made: list[StreamingGroup] = []

    def make(**keys: Any) -> StreamingGroup:
        made.append(StreamingGroup(name, source, nats, **keys))
        return made[-1]

    yield make
    for each in made:
        each.close()
