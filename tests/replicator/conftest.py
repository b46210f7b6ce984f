"""What copies tables by hand, for tests of the catalog and of the copy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgsluice.replicator.snapshot.copy_task import CopyProcess
from tests.replicator.copier import Copier
from tests.servers import Database, NatsServer


@pytest.fixture
def copier(group: str, source_database: Database, nats_server: NatsServer) -> Copier:
    return Copier(group, source_database, nats_server.settings())


@pytest.fixture
def copy_process() -> Iterator[CopyProcess]:
    process = CopyProcess()
    yield process
    process.close()
