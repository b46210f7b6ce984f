"""A source of each version, whose definitions are captured."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from pgsluice.shared.wire.names import GroupNames
from tests.replicator.definitions.captured import Stream, install
from tests.servers import Database, PostgresServer

VERSIONS = (15, 18)
"""Those of most tests; the experiments run on all."""


@pytest.fixture
def names(group: str) -> GroupNames:
    return GroupNames(group)


@pytest.fixture(params=VERSIONS)
def source(request: pytest.FixtureRequest, postgres_of: Callable[[int], PostgresServer]) -> Iterator[Database]:
    """An empty database."""
    database = postgres_of(request.param).create_database(f"source_{uuid.uuid4().hex[:12]}")
    yield database
    database.drop()


@pytest.fixture
def stream(source: Database, names: GroupNames) -> Stream:
    """Of public.t (a, b), which is published and captured."""
    source.execute("CREATE TABLE t (a int PRIMARY KEY, b text)")
    source.execute(f"CREATE PUBLICATION {names.publication} FOR TABLE t WITH (publish_via_partition_root = true)")
    install(source, names)
    return Stream.begin(source, names)
