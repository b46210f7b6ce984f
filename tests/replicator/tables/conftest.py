"""Groups that are made of what a test, or all tests of a module, ask for."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """The same for a group that all tests of a module share, each with tables of its own: what a start of Spark copies at once
    costs hardly more than one table."""
    name = uuid.uuid4().hex[:12]
    database = postgres.create_database(f"source_{name}")
    with group_maker(f"test-{name}", database, nats_server) as make:
        yield make
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
