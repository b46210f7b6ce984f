"""The real Kafka that tests start."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

from tests.servers.kafka import RealKafka
from tests.waiting import wait_until

PATIENCE_S = 60.0


@pytest.mark.kafka
def test_a_transaction_survives_a_kill_and_an_aborted_one_is_not_read() -> None:
    with RealKafka() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "test"})
        producer.init_transactions(PATIENCE_S)
        for value in (b"aborted", b"committed"):
            producer.begin_transaction()
            producer.produce("events", value)
            producer.flush(PATIENCE_S)
            if value == b"aborted":
                producer.abort_transaction(PATIENCE_S)
            else:
                producer.commit_transaction(PATIENCE_S)
        del producer
        broker.kill()
        broker.start()
        assert read_committed(broker, "events") == b"committed"


def read_committed(broker: RealKafka, topic: str) -> bytes:
    """The first record's value."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    try:
        consumer.subscribe([topic])
        record = wait_until(lambda: consumer.poll(0.5), deadline_s=PATIENCE_S, what="a record")
        assert record.error() is None
        value: bytes = record.value()
        return value
    finally:
        consumer.close()
