"""How fast does ``pgsluice worker postgres`` apply what ``worker kafka`` wrote, reading its topics (``worker-source: kafka``)?

One broker, three partitions a topic, inserts. *Backlog*: transactions of 1,000 rows that are in Kafka before the reading worker
goes on; it is warm, and suspended until then. *Live*: all three processes run while one connection inserts in transactions of 20
rows, so the index names many ranges of a few records; from the first commit until the target holds all. Then source and target
are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import data
from benchmarks.backlog import RATE
from benchmarks.data import EVENTS, WARM_UP
from benchmarks.group import DEADLINE_S, Group, finish, stop
from benchmarks.measurement import Options, Run, Scenario
from benchmarks.processes import WORKER, ProcessWatch, suspended
from benchmarks.servers import Servers, start_servers
from tests.servers import Database
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until

NAME = "kafka_source"
ROWS = 500_000
WARM_UP_ROWS = 50_000
LIVE_SHARE = 5
"""The live part has the backlog's rows divided by this."""
LIVE_ROWS = 20
"""Of a transaction."""
PARTITIONS = 3
BACKLOG, LIVE = "worker postgres, backlog", "both hops, live"
LOOK_INTERVAL_S = 0.05


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers, RealKafka() as broker:
        for repetition in options.repetitions:
            yield from _drain(servers, broker, repetition, rows)


@dataclass(frozen=True, slots=True)
class Hops:
    """The group that writes topics, and the one that reads them."""

    first: Group
    second: Group

    @classmethod
    def make(cls, servers: Servers, broker: RealKafka, name: str) -> Hops:
        source, target = servers.source.create_database(name), servers.target.create_database(name)
        data.create_tables(source, target)
        group, hosts = name.replace("_", "-"), ["127.0.0.1"]
        topics = {"kafka-topic": f"{group}.{{table}}", "kafka-create-topics": True, "kafka-partitions": PARTITIONS}
        reached = {"kafka-brokers": broker.bootstrap, "kafka-allow-hosts": hosts, "kafka-replication-factor": 1}
        first = Group(group, servers, source, target, format="pgsluice", **topics, **reached)
        read = {"worker-source": "kafka", "source-topics": [f"{group}.{table}" for table in (WARM_UP, EVENTS)]}
        where = {"source-kafka-brokers": broker.bootstrap, "source-kafka-allow-hosts": hosts}
        return cls(first, Group(f"{group}-in", servers, source, target, **read, **where))

    def write_to_kafka(self) -> None:
        """Everything that was committed at the source by now."""
        self.first.publish_until()
        with self.first.command("worker", "kafka", "--until-sequence", "current") as worker:
            finish(worker)


def _drain(servers: Servers, broker: RealKafka, repetition: int, rows: int) -> Iterator[Run]:
    hops = Hops.make(servers, broker, f"kafka_source_{repetition}")
    source, target, live = hops.first.source, hops.first.target, max(LIVE_ROWS, rows // LIVE_SHARE)
    hops.first.publish_until()
    data.insert_in_parts(source, WARM_UP, WARM_UP_ROWS)
    data.insert(source, EVENTS, 1)  # for its topic
    hops.write_to_kafka()
    with hops.second.worker() as reading, ExitStack() as writing:
        _wait(target, WARM_UP, WARM_UP_ROWS)
        with suspended(reading.pid):
            data.insert_in_parts(source, EVENTS, rows, first=2)
            hops.write_to_kafka()
            servers.settle()
            roots = servers.roots() | {WORKER: reading.pid, "kafka": broker.pid}
            watch = ProcessWatch(roots).start()
            began_at = time.monotonic()
        _wait(target, EVENTS, rows)
        yield _run(BACKLOG, repetition, rows, began_at, watch)
        first_hop = [writing.enter_context(hops.first.replicator()), writing.enter_context(hops.first.command("worker", "kafka"))]
        for process, message in zip(first_hop, ("replicating", "reading"), strict=True):
            process.wait_for_log(message)
        servers.settle()
        watch = ProcessWatch(roots).start()
        began_at = time.monotonic()
        data.insert_in_parts(source, EVENTS, rows + live, first=rows + 1, rows_per_transaction=LIVE_ROWS)
        _wait(target, EVENTS, rows + live)
        yield _run(LIVE, repetition, live, began_at, watch)
        stop(*first_hop, reading)
    data.require_equal(source, target, EVENTS, WARM_UP)
    hops.first.drop()


def _run(contestant: str, repetition: int, rows: int, began_at: float, watch: ProcessWatch) -> Run:
    elapsed_s = time.monotonic() - began_at
    watch.stop()
    return Run(NAME, contestant, repetition, {RATE: rows / elapsed_s}, rows, watch.usage())


def _wait(target: Database, table: str, rows: int) -> None:
    def are_there() -> bool:
        return bool(target.execute(f"SELECT count(*) FROM {table}")[0][0] >= rows)

    wait_until(are_there, deadline_s=DEADLINE_S, what=f"{rows} rows of {table}", interval_s=LOOK_INTERVAL_S)


SCENARIO = Scenario(
    name=NAME,
    title="what worker kafka wrote, read from its topics into Postgres: a backlog, and live in small transactions",
    goals=(),
    plotted=(RATE,),
    measure=measure,
)
