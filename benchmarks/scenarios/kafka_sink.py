"""How fast does ``pgsluice worker kafka`` produce a backlog that is in the group's stream, in transactions?

The backlog are inserts in transactions of 1,000 rows, as in the scenario ``backlog``. One broker takes them in a topic of one
partition. The worker is warm, by a tenth of the records or more, and suspended until the stream holds everything; a run ends when
readers of what is committed may read all. Then all records are read: each position once, in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks import data
from benchmarks.backlog import RATE
from benchmarks.group import DEADLINE_S, Group
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.servers import Servers, start_servers
from benchmarks.warm_drain import drained
from pgsluice.shared.wire.position import Position
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import TopicReader

NAME = "kafka_sink"
ROWS = 500_000
WARM_UP_ROWS = 50_000
CONTESTANT = "worker kafka"
LOOK_INTERVAL_S = 0.02


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers, RealKafka() as broker:
        for repetition in options.repetitions:
            yield _drain(servers, broker, repetition, rows)


def _drain(servers: Servers, broker: RealKafka, repetition: int, rows: int) -> Run:
    name = f"kafka_sink_{repetition}"
    source, target = servers.source.create_database(name), servers.target.create_database(name)
    kafka = {"kafka-brokers": broker.bootstrap, "kafka-allow-hosts": ["127.0.0.1"], "kafka-topic": name}
    made = {"kafka-create-topics": True, "kafka-partitions": 1, "kafka-replication-factor": 1}
    group = Group(name.replace("_", "-"), servers, source, target, **kafka, **made)
    end = Committed(broker, name)
    elapsed_s, usage = drained(servers, group, "kafka", (WARM_UP_ROWS, rows), {"kafka": broker.pid}, end.wait)
    _check(broker, name, WARM_UP_ROWS + rows)
    return Run(NAME, CONTESTANT, repetition, {RATE: rows / elapsed_s}, rows, usage)


class Committed:
    """How far readers of what is committed may read. Offsets count the ends of transactions too: so few that the last transaction
    is never taken for committed before it is."""

    def __init__(self, broker: RealKafka, topic: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._place = TopicPartition(topic, 0)
        self._topic = topic

    def wait(self, records: int) -> None:
        wait_until(lambda: self._end() >= records, deadline_s=DEADLINE_S, what=f"{records} records", interval_s=LOOK_INTERVAL_S)

    def _end(self) -> int:
        if self._topic not in self._admin.list_topics(timeout=DEADLINE_S).topics:
            return 0
        asked = self._admin.list_offsets({self._place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
        try:
            return int(asked[self._place].result(DEADLINE_S).offset)
        except KafkaException as failure:  # a topic that was just made
            if not failure.args[0].retriable():
                raise
            return 0


def _check(broker: RealKafka, topic: str, total: int) -> None:
    before, count = Position.parse("0/0:0"), 0
    for record in TopicReader(broker, topic).records():
        position = Position.parse(record.headers["pgsluice-position"])
        if position <= before:
            raise data.DifferenceError(f"topic {topic} has {position} at offset {record.offset}, behind {before}")
        before, count = position, count + 1
    if count != total:
        raise data.DifferenceError(f"topic {topic} has {count} records of {total}")


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of inserts that worker kafka produces in transactions, a record for each",
    goals=(at_least(CONTESTANT, RATE, 50_000),),
    plotted=(RATE,),
    measure=measure,
)
