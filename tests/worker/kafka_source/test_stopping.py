"""A worker that reads Kafka is told to end while no broker answers."""

from __future__ import annotations

import time

import pytest

from tests.servers import NatsServer, PgsluiceProcess
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.written_topic import WrittenTopic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

STOP_S = 15.0
"""Half of what a broker is waited for."""


def test_brokers_that_stand_still_hold_up_no_worker_that_is_to_end(
    real_kafka: RealKafka, nats_server: NatsServer, group: str
) -> None:
    topic = WrittenTopic(real_kafka, nats_server, group)
    topic.add(1)
    with PgsluiceProcess("worker", "stdout", config=topic.keys) as worker:
        wait_until(worker.stdout, deadline_s=120, what="the record")
        with real_kafka.paused():
            asked_at = time.monotonic()
            worker.terminate()
            assert worker.wait(120) == 0, worker.log()
            assert time.monotonic() - asked_at < STOP_S
