"""A pipeline on the servers that tests share."""

from __future__ import annotations

import pytest

from tests.replicator.pipelines.pipeline_under_test import TABLE, PipelineUnderTest
from tests.servers import Database, NatsServer


@pytest.fixture
def pipeline(group: str, source_database: Database, nats_server: NatsServer) -> PipelineUnderTest:
    source_database.execute(TABLE)
    return PipelineUnderTest(group, source_database, nats_server)
