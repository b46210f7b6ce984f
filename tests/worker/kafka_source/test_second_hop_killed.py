"""The reading worker dies again and again, and so do the writing one and the broker: the target ends up as the source."""

from __future__ import annotations

import os
import random
import threading
from contextlib import ExitStack

import pytest

from tests.end_to_end.random_load import TABLES, RandomLoad, checksums
from tests.end_to_end.supervised import Supervised
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.kafka_source.second_hop import first_hop, second_hop

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("SECOND_HOP_KILLS", "12"))
LONGEST_LIFE_S = 12.0
TRANSACTIONS_BETWEEN = 5
WHOLE_OLD_ROWS = "ALTER TABLE items REPLICA IDENTITY FULL"
"""Its keys change while large values stay, and its rows move to other partitions then."""


def victims(seed: int) -> list[str]:
    """The reading worker mostly, the writing one now and then, the broker once."""
    dealt = ["worker postgres"] * (KILLS - KILLS // 6 - 1) + ["worker kafka"] * (KILLS // 6) + ["broker"]
    random.Random(seed).shuffle(dealt)
    return dealt


def kill_broker(broker: RealKafka) -> None:
    broker.kill()
    threading.Event().wait(2.0)
    broker.start()


def test_kills_of_workers_and_broker_lose_and_double_nothing(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    seed = int(os.environ.get("SECOND_HOP_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"SECOND_HOP_SEED={seed} SECOND_HOP_KILLS={KILLS}")
    choose = random.Random(seed)
    RandomLoad.create_tables(source_database)
    RandomLoad.create_tables(target_database)
    source_database.execute(WHOLE_OLD_ROWS)
    with RealKafka() as broker, ExitStack() as running:
        there = first_hop(group, source_database, nats_server, broker)
        here = second_hop(group, list(TABLES), target_database, nats_server, broker)
        load = RandomLoad(source_database, seed=20261125, connections=2, most_rows=200)
        processes = {
            "replicator": Supervised(PgsluiceProcess("replicator", config=there)),
            "worker kafka": Supervised(PgsluiceProcess("worker", "kafka", config=there)),
            "worker postgres": Supervised(PgsluiceProcess("worker", "postgres", config=here)),
        }

        def check_alive() -> None:
            for name, each in processes.items():
                assert each.stopped_by is None, f"{name} ended with {each.stopped_by}: {each.process.log()[-4000:]}"

        def has_topics() -> bool:
            check_alive()
            return "reading" in processes["worker kafka"].process.log() and load.transactions >= 40

        running.enter_context(processes["replicator"])
        processes["replicator"].process.wait_for_log("replicating")
        running.enter_context(load)
        running.enter_context(processes["worker kafka"])
        wait_until(has_topics, deadline_s=300, what="records in Kafka")
        wait_until(lambda: made_topics(broker) >= {f"{group}.{table}" for table in TABLES}, deadline_s=300, what="all topics")
        running.enter_context(processes["worker postgres"])
        wait_until(lambda: target_database.execute("SELECT 1 FROM left_side LIMIT 1"), deadline_s=300, what="rows at the target")
        for victim in victims(seed):
            check_alive()
            threading.Event().wait(choose.uniform(0.5, LONGEST_LIFE_S))
            print(victim, flush=True)
            if victim == "broker":
                kill_broker(broker)
            else:
                processes[victim].process.kill()
        load.stop()

        def is_equal() -> bool:
            check_alive()
            return checksums(source_database) == checksums(target_database)

        wait_until(is_equal, deadline_s=900, what="equal tables", interval_s=1.0)
        assert processes["worker postgres"].ends[-9] >= KILLS // 2, processes["worker postgres"].ends


def made_topics(broker: RealKafka) -> set[str]:
    from confluent_kafka.admin import AdminClient

    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics)
