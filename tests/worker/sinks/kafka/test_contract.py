"""The contract of sinks, kept by the Kafka sink on a real broker."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.testing import Promise
from pgsluice.testing.tried_batches import counting_events, followed_accounts
from tests.servers import NatsServer
from tests.servers.kafka import RealKafka
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.contract import AT_LEAST_ONCE, EXACTLY_ONCE, SinkContract
from tests.worker.sinks.kafka.cluster import KafkaDestination

pytestmark = pytest.mark.kafka


class JsonDestination(KafkaDestination):
    def delivered(self) -> list[int]:
        return counting_events(self.reader("events").values())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self.reader("accounts").values())


class TestTransactions(SinkContract):
    kind = "kafka"
    promises = EXACTLY_ONCE | {Promise.CATCH_UP}

    @pytest.fixture
    def destination(self, real_kafka: RealKafka, group: str) -> JsonDestination:
        return JsonDestination(real_kafka, group)


class TestWithoutTransactions(SinkContract):
    kind = "kafka"
    promises = AT_LEAST_ONCE | {Promise.CATCH_UP}

    @pytest.fixture
    def destination(self, real_kafka: RealKafka, nats_server: NatsServer, group: str) -> JsonDestination:
        ensure_bucket(nats_server.settings(), group)
        changed: dict[str, Any] = {"transactions": False}
        return JsonDestination(real_kafka, group, nats_server.settings(), **changed)
