"""Replicator, worker and broker die again and again under load; nothing is lost, doubled or seen half."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from dataclasses import dataclass

import pytest

from tests.end_to_end.balance_watch import BalanceWatch
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.random_load import RandomLoad, checksums
from tests.servers import Database, NatsServer
from tests.stream_audit import audit_stream
from tests.waiting import wait_until

CATCH_UP_DEADLINE_S = 600.0  # on a busy machine the load writes faster than the worker may apply


@dataclass(frozen=True)
class Killing:
    """How often each of them dies, and how long (at most) it lives in between."""

    replicator: int
    worker: int
    nats: int
    longest_life_s: float


def kill_at_random(under_test: GroupUnderTest, nats: NatsServer, killing: Killing, choose: random.Random) -> None:
    """Kills in a random order at random moments, and starts again at once what was killed."""
    victims = ["replicator"] * killing.replicator + ["worker"] * killing.worker + ["nats"] * killing.nats
    choose.shuffle(victims)
    never = threading.Event()
    for victim in victims:
        never.wait(choose.uniform(0.1, killing.longest_life_s))
        if victim == "nats":
            nats.kill()
            nats.start()
            continue
        process = under_test.replicator if victim == "replicator" else under_test.worker
        process.kill()
        process.start()


def run_killing(source: Database, target: Database, nats: NatsServer, group: str, killing: Killing) -> None:
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"KILL_SEED={seed}")
    RandomLoad.create_tables(source)
    load, watch = RandomLoad(source, seed), BalanceWatch(target)
    with GroupUnderTest(configuration(group, source, target, nats), is_fresh=True) as under_test:
        under_test.replicator.wait_for_log("replicating")
        with load, watch:
            wait_until(lambda: watch.looks > 0, deadline_s=60, what="the first batch at the target")
            kill_at_random(under_test, nats, killing, random.Random(seed))
            load.stop()
            wait_until(
                lambda: checksums(source) == checksums(target),
                deadline_s=CATCH_UP_DEADLINE_S,
                what="equal tables",
                interval_s=0.5,
            )
        audit = asyncio.run(audit_stream(nats.settings(), group))
    assert load.transactions > 0
    assert watch.unequal == []
    assert audit.problems == []
    print(f"{load.transactions} transactions, {audit.changes} changes, {watch.looks} looks at the target")


@pytest.mark.timeout(900)
def test_killing_each_process_a_few_times_loses_and_doubles_nothing(
    source_database: Database, target: Database, nats: NatsServer, group: str
) -> None:
    run_killing(source_database, target, nats, group, Killing(replicator=3, worker=2, nats=1, longest_life_s=4))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killing_them_thirty_times_loses_and_doubles_nothing(
    source_database: Database, target: Database, nats: NatsServer, group: str
) -> None:
    run_killing(source_database, target, nats, group, Killing(replicator=15, worker=15, nats=2, longest_life_s=12))
