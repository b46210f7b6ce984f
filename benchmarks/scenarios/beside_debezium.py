"""From the slot's backlog to a stream of NATS and to a topic of Kafka, beside Debezium Server.

The backlog are inserts in transactions of 1,000 rows. Each contestant is warm, and suspended until the source holds everything; a
run ends when the stream, or readers of the topic, have all of it. Both write Debezium's JSON without schemas, to the same
servers. Debezium Server runs with the settings of its documentation: at least once, no transactions. pgsluice's replicator and
worker run with their defaults: exactly once. It is measured only when it is named, with DEBEZIUM_SERVER.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks import data
from benchmarks.backlog import RATE
from benchmarks.data import EVENTS, WARM_UP
from benchmarks.debezium_server import PREFIX, DebeziumServer
from benchmarks.group import DEADLINE_S, Group, stop
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch, suspended
from benchmarks.scenarios.kafka_sink import Committed
from benchmarks.scenarios.nats_sink import reached
from benchmarks.servers import Servers, start_servers
from tests.servers import Database
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until

NAME = "beside_debezium"
ROWS = 100_000
WARM_UP_ROWS = 5_000
RATIO = "ratio_to_debezium"
DEBEZIUM = "Debezium Server"
STRING = "org.apache.kafka.common.serialization.StringSerializer"


@dataclass(frozen=True, slots=True)
class _Contest:
    """One contestant with one sink. ``warm`` and ``wait`` return when that holds the warm-up's rows, or those and the others'."""

    contestant: str
    source: Database
    pids: Mapping[str, int]
    warm: Callable[[], None]
    wait: Callable[[], None]


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    for repetition in options.repetitions:
        with start_servers() as servers, RealKafka() as broker:
            for sink in ("nats", "kafka"):
                name = f"beside_{sink}_{repetition}"
                with _debezium(servers, broker, sink, f"{name}_theirs", rows) as contest:
                    theirs = _drained(servers, broker, contest, repetition, rows)
                yield theirs
                with _pgsluice(servers, broker, sink, f"{name}_ours", rows) as contest:
                    ours = _drained(servers, broker, contest, repetition, rows)
                ours.figures[RATIO] = ours.figures[RATE] / theirs.figures[RATE]
                yield ours


def _drained(servers: Servers, broker: RealKafka, contest: _Contest, repetition: int, rows: int) -> Run:
    data.insert_in_parts(contest.source, WARM_UP, WARM_UP_ROWS)
    contest.warm()
    with contextlib.ExitStack() as stack:
        for pid in contest.pids.values():
            stack.enter_context(suspended(pid))
        data.insert_in_parts(contest.source, EVENTS, rows)
        servers.settle()
        watch = ProcessWatch(servers.roots() | {"kafka": broker.pid} | dict(contest.pids)).start()
        began_at = time.monotonic()
    contest.wait()
    elapsed_s = time.monotonic() - began_at
    watch.stop()
    return Run(NAME, contest.contestant, repetition, {RATE: rows / elapsed_s}, rows, watch.usage())


@contextlib.contextmanager
def _debezium(servers: Servers, broker: RealKafka, sink: str, name: str, rows: int) -> Iterator[_Contest]:
    source = servers.source.create_database(name)
    data.create_tables(source)
    producer = {"bootstrap.servers": broker.bootstrap, "key.serializer": STRING, "value.serializer": STRING}
    properties = {"type": "kafka"} | {f"kafka.producer.{key}": value for key, value in producer.items()}
    if sink == "nats":
        stream = {"url": servers.nats.url, "create-stream": "true", "subjects": f"{PREFIX}.>", "storage": "file"}
        properties = {"type": "nats-jetstream"} | {f"nats-jetstream.{key}": value for key, value in stream.items()}
    waits = _waits(servers, broker, sink, "DebeziumStream", PREFIX + ".public.{}", rows)
    with DebeziumServer(source, name, properties) as server:
        wait_until(lambda: "Processing messages" in server.log(), deadline_s=DEADLINE_S, what="Debezium's start")
        yield _Contest(f"{DEBEZIUM}, {sink}", source, {DEBEZIUM: server.pid}, *waits)


@contextlib.contextmanager
def _pgsluice(servers: Servers, broker: RealKafka, sink: str, name: str, rows: int) -> Iterator[_Contest]:
    source, target = servers.source.create_database(name), servers.target.create_database(name)
    data.create_tables(source)
    keys: dict[str, object] = {"format": "debezium", "nats-stream": "OURS"}
    if sink == "kafka":
        keys = {"format": "debezium", "kafka-brokers": broker.bootstrap, "kafka-allow-hosts": ["127.0.0.1"]}
        keys |= {"kafka-topic": "ours.{table}", "kafka-create-topics": True, "kafka-partitions": 1, "kafka-replication-factor": 1}
    group = Group(name.replace("_", "-"), servers, source, target, **keys)
    with group.replicator() as replicator, group.command("worker", sink) as worker:
        replicator.wait_for_log("replicating")
        pids = {REPLICATOR: replicator.pid, WORKER: worker.pid}
        yield _Contest(f"pgsluice, {sink}", source, pids, *_waits(servers, broker, sink, "OURS", "ours.{}", rows))
        stop(replicator, worker)


def _waits(
    servers: Servers, broker: RealKafka, sink: str, stream: str, topic: str, rows: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    """In a stream both tables are, of topics each has its own."""
    if sink == "nats":
        return (
            lambda: asyncio.run(reached(servers, stream, WARM_UP_ROWS)),
            lambda: asyncio.run(reached(servers, stream, WARM_UP_ROWS + rows)),
        )
    return (
        lambda: Committed(broker, topic.format(WARM_UP)).wait(WARM_UP_ROWS),
        lambda: Committed(broker, topic.format(EVENTS)).wait(rows),
    )


SCENARIO = Scenario(
    name=NAME,
    title="a backlog from the slot into NATS and Kafka, beside Debezium Server",
    goals=(at_least("pgsluice, nats", RATIO, 3.0), at_least("pgsluice, kafka", RATIO, 3.0)),
    plotted=(RATE,),
    measure=measure,
    is_long=True,
)
