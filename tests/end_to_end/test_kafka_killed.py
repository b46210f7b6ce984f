"""A worker that produces to Kafka is killed, and its broker, under load: readers of what is committed see each change once, in
order, and never a part of a transaction."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from pgsluice.shared.wire.position import Position
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until

KILLS = 30
COUNTERS = 20
TOPIC = "chaos"
TABLES = """
    CREATE TABLE events (batch int, n int, PRIMARY KEY (batch, n));
    CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL)
"""
COUNT = "INSERT INTO counters VALUES ({counter}, 1) ON CONFLICT (id) DO UPDATE SET value = counters.value + 1"
WRITE = "INSERT INTO events SELECT {batch}, n FROM generate_series(1, {rows}) n; " + COUNT


class CommittedReader:
    """Reads while others write, and looks at each end that it meets whether the transactions before it are whole."""

    def __init__(self, broker: RealKafka, rows_of: dict[int, int]) -> None:
        reading = {"isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        self._consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0} | reading
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self._rows_of = rows_of
        self._last = Position.parse("0/0:0")
        self.rows: dict[int, int] = {}
        self.counters: dict[int, int] = {}
        self.records = 0
        self.ends = 0

    def read(self) -> int:
        """Takes what there is; how many records came in all."""
        while (record := self._consumer.poll(0.2)) is not None:
            error = record.error()
            if error is None:
                self._take(json.loads(record.value() or b""), dict(record.headers() or [])["pgsluice-position"])
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ends += 1
                assert self.rows == {batch: self._rows_of[batch] for batch in self.rows}, "a part of a transaction is seen"
                assert sum(self.counters.values()) == len(self.rows), "a part of a transaction is seen"
                break
            else:
                assert error.retriable() or error.code() in PASSING, error
        return self.records

    def _take(self, line: dict[str, Any], place: bytes) -> None:
        position, row = Position.parse(place.decode()), line["after"]
        assert position > self._last, "twice, or out of order"
        self._last = position
        self.records += 1
        if line["table"] == "counters":
            assert row["value"] == self.counters.get(row["id"], 0) + 1, "a key's changes are not in order"
            self.counters[row["id"]] = row["value"]
        else:
            assert row["n"] == self.rows.get(row["batch"], 0) + 1, "a gap"
            self.rows[row["batch"]] = row["n"]

    def close(self) -> None:
        self._consumer.close()


PASSING = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError.UNKNOWN_TOPIC_OR_PART}


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_thirty_kills_of_worker_and_broker_lose_and_double_nothing(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"KILL_SEED={seed}")
    choose, rows_of = random.Random(seed), dict[int, int]()
    source_database.execute(TABLES)
    with RealKafka() as broker:
        kafka = {"kafka-brokers": broker.bootstrap, "kafka-allow-hosts": ["127.0.0.1"], "kafka-topic": TOPIC}
        made = {"kafka-create-topics": True, "kafka-partitions": 1, "kafka-replication-factor": 1}
        keys = configuration(group, source_database, None, nats_server, **kafka, **made)
        succeed(replicate(keys))
        reader = CommittedReader(broker, rows_of)
        with PgsluiceProcess("replicator", config=keys) as replicator, PgsluiceProcess("worker", "kafka", config=keys) as worker:
            wait_until(lambda: "reading" in worker.log(), deadline_s=120, what="a worker that reads")
            for kill in range(KILLS):
                seen = reader.read()
                write(source_database, rows_of, range(50 * kill, 50 * kill + 50), choose)
                goal = seen + choose.randint(1, 3000)
                wait_until(lambda goal=goal: reader.read() >= goal, deadline_s=300, what=f"record {goal}")  # type: ignore[misc]
                assert worker.is_running, worker.log()
                victim = broker if kill % 3 == 2 else worker
                write(source_database, rows_of, range(100_000 + kill, 100_001 + kill), choose)
                victim.kill()
                victim.start()
            total = sum(rows_of.values()) + len(rows_of)
            wait_until(lambda: reader.read() >= total, deadline_s=300, what="all records")
            worker.terminate()
            assert worker.wait(120) == 0, worker.log()
            replicator.terminate()
            assert replicator.wait(60) == 0, replicator.log()
        reader.read()
        reader.close()
    assert (reader.records, reader.rows) == (total, rows_of)
    assert reader.counters == dict(source_database.execute("SELECT id, value FROM counters"))
    print(f"{total} records, seen whole at {reader.ends} ends")


def write(source: Database, rows_of: dict[int, int], batches: range, choose: random.Random) -> None:
    for batch in batches:
        rows_of[batch] = 2300 if batch % 25 == 0 else choose.randint(1, 60)
        source.execute(WRITE.format(batch=batch, rows=rows_of[batch], counter=choose.randint(1, COUNTERS)))
