"""The Kafka sink as a process: from the source's commits to a topic."""

from __future__ import annotations

import json
from itertools import groupby

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer
from tests.servers.kafka import RealKafka
from tests.worker.sinks.kafka.cluster import TopicReader

WRITE = "INSERT INTO events SELECT {batch}, n FROM generate_series(1, {rows}) n"


@pytest.mark.kafka
def test_a_topic_holds_each_change_once_in_order(
    source_database: Database, nats_server: NatsServer, real_kafka: RealKafka, group: str
) -> None:
    kafka = {"kafka-brokers": real_kafka.bootstrap, "kafka-allow-hosts": ["127.0.0.1"], "kafka-create-topics": True}
    named = {"kafka-topic": f"{group}.{{table}}", "kafka-partitions": 1, "kafka-replication-factor": 1}
    keys = configuration(group, source_database, None, nats_server, **kafka, **named)
    source_database.execute("CREATE TABLE events (batch int, n int, PRIMARY KEY (batch, n))")
    succeed(replicate(keys))
    rows_of = {batch: 100 * batch for batch in range(1, 8)}
    for batch, rows in rows_of.items():
        source_database.execute(WRITE.format(batch=batch, rows=rows))
    succeed(replicate(keys))
    succeed(apply(keys, "kafka"))
    succeed(apply(keys, "kafka"))
    records = TopicReader(real_kafka, f"{group}.events").records()
    found = [json.loads(record.value or b"")["after"] for record in records]
    assert [json.loads(record.key or b"") for record in records] == found
    told = {batch: [row["n"] for row in rows] for batch, rows in groupby(found, key=lambda row: row["batch"])}
    assert told == {batch: list(range(1, rows + 1)) for batch, rows in rows_of.items()}
