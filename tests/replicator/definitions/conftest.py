"""A source of each version, whose definitions are captured."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from pgsluice.shared.wire.names import GroupNames
from tests.replicator.definitions.captured import Stream, install
from tests.servers import Database, PostgresServer

VERSIONS = (15, 18)
"""``make test`` plays every experiment on them: a statement of ours that the older server does not know fails there. What else is
shown on the newer one only has the marker ``versions`` on the older one."""

on_both = pytest.mark.parametrize("source", VERSIONS, indirect=True)
"""Of a test about what no experiment shows on the older version: removal, and the rights of roles."""


@pytest.fixture
def names(group: str) -> GroupNames:
    return GroupNames(group)


@pytest.fixture(params=[pytest.param(15, marks=[pytest.mark.long, pytest.mark.versions]), 18])
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
