"""A group that is made of what a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.replicator.tables.streaming_group import StreamingGroup
from tests.servers import Database, NatsServer

MakeGroup = Callable[..., StreamingGroup]


@pytest.fixture
def make_group(group: str, source_database: Database, nats_server: NatsServer) -> Iterator[MakeGroup]:
    """Makes the test's one group; keyword arguments are keys of its configuration."""
    made: list[StreamingGroup] = []

    def make(**keys: Any) -> StreamingGroup:
        made.append(StreamingGroup(group, source_database, nats_server, **keys))
        return made[-1]

    yield make
    for each in made:
        each.close()
