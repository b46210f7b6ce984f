"""The contract of sinks, kept by the Kafka sink on a real broker."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.testing.tried_batches import followed_accounts
from tests.servers import NatsServer
from tests.servers.kafka import RealKafka
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.contract import SinkContract
from tests.worker.sinks.kafka.cluster import KafkaDestination
from tests.worker.sinks.test_contract import counting_events
from tests.worker.sinks.two_lane_contract import TwoLaneContract

pytestmark = pytest.mark.kafka


class JsonDestination(KafkaDestination):
    def delivered(self) -> list[int]:
        return counting_events(self.reader("events").values())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self.reader("accounts").values())


class TestTransactions(SinkContract, TwoLaneContract):
    kind = "kafka"

    @pytest.fixture
    def destination(self, real_kafka: RealKafka, group: str) -> JsonDestination:
        return JsonDestination(real_kafka, group)


class AtLeastOnceDestination(JsonDestination):
    is_exactly_once = False


class TestWithoutTransactions(SinkContract, TwoLaneContract):
    kind = "kafka"

    @pytest.fixture
    def destination(self, real_kafka: RealKafka, nats_server: NatsServer, group: str) -> AtLeastOnceDestination:
        ensure_bucket(nats_server.settings(), group)
        changed: dict[str, Any] = {"transactions": False}
        return AtLeastOnceDestination(real_kafka, group, nats_server.settings(), **changed)
