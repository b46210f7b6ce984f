"""A server that tests share, with a NATS of their own, and the bucket behind servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.shared.broker.connection import connected
from tests.console.server.served import PASSWORD, Served
from tests.servers import NatsServer


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The page's tests import a browser's library, which takes most of a second."""
    return True if collection_path.name == "page" and "not page" in config.option.markexpr else None


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """A server looks at every group that it finds: those that tests of other folders left are not here."""
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def served(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Shared: each test takes names of its own for its groups and tokens. It has a password of sources in its environment."""
    with Served(nats_server.url, tmp_path_factory.mktemp("served"), env={"SOURCE_PASSWORD": PASSWORD}) as server:
        yield server


@pytest.fixture
async def bucket(nats_server: NatsServer) -> AsyncIterator[ControlBucket]:
    async with connected(nats_server.settings(), "test") as client:
        made = ControlBucket(client)
        await made.make(1)
        yield made
