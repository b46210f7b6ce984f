"""Everything dies at random for an hour, under load, and is started again as a supervisor would: equal at the end, none torn.

``make soak``; SOAK_KILLS (1000), SOAK_LONGEST_LIFE_S (6) and KILL_SEED choose how often, how fast and in which order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import psutil
import psycopg
import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.balance_watch import BalanceWatch
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.random_load import RandomLoad, checksums
from tests.end_to_end.supervised import Supervised
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.stream_audit import audit_stream
from tests.waiting import wait_until

KILLS = int(os.environ.get("SOAK_KILLS", "1000"))
LONGEST_LIFE_S = float(os.environ.get("SOAK_LONGEST_LIFE_S", "6"))
CATCH_UP_DEADLINE_S = 900.0
MOST_LAG_MESSAGES = 400  # beyond it the load waits: a worker that dies every few seconds falls behind
REPORT_EVERY = 50

VICTIMS = {
    "replicator": 25,
    "worker": 14,
    "worker's JVM": 5,
    "a Python process of the worker": 6,
    "nats": 16,
    "source": 8,
    "target": 8,
    "a connection to the source": 9,
    "a connection to the target": 9,
}
"""What is killed, and how many times in a hundred."""

_TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE application_name LIKE 'pgsluice%' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1
"""


class Killer:
    """Kills one thing after the other, each with the signal that nothing survives, and starts servers again at once."""

    def __init__(
        self, replicator: Supervised, worker: Supervised, nats: NatsServer, source: Database, target: Database, seed: int
    ) -> None:
        self._replicator, self._worker = replicator, worker
        self._source, self._target = source, target
        self._choose = random.Random(seed)
        self._ways: dict[str, Callable[[], bool]] = {
            "replicator": lambda: self._kill(replicator),
            "worker": lambda: self._kill(worker),
            "worker's JVM": lambda: self._kill_child(lambda process: process.name() == "java"),
            "a Python process of the worker": lambda: self._kill_child(lambda process: "python" in process.name()),
            "nats": lambda: self._restart(nats),
            "source": lambda: self._restart(source.server),
            "target": lambda: self._restart(target.server),
            "a connection to the source": lambda: self._terminate(source),
            "a connection to the target": lambda: self._terminate(target),
        }
        self.killed: Counter[str] = Counter()

    def kill_once(self) -> None:
        """After a random pause. What does not exist just then is not counted."""
        threading.Event().wait(self._choose.uniform(0.05, LONGEST_LIFE_S))
        [victim] = self._choose.choices(list(VICTIMS), list(VICTIMS.values()))
        if self._ways[victim]():
            self.killed[victim] += 1

    def _kill(self, victim: Supervised) -> bool:
        if not victim.process.is_running:
            return False
        victim.process.kill()
        return True

    def _kill_child(self, is_wanted: Callable[[psutil.Process], bool]) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._worker.process.pid).children(recursive=True)
            wanted = [child for child in children if is_wanted(child)]
            if wanted:
                self._choose.choice(wanted).kill()
                return True
        return False

    def _restart(self, server: NatsServer | PostgresServer) -> bool:
        server.kill()
        server.start()
        return True

    def _terminate(self, database: Database) -> bool:
        try:
            return database.execute(_TERMINATE) == [(True,)]
        except psycopg.OperationalError:
            return False


class LagWatch:
    """Holds the load while the worker is too far behind."""

    def __init__(self, nats: NatsServer, group: str, load: RandomLoad) -> None:
        self._nats, self._group, self._load = nats, group, load

    def look(self) -> None:
        lag = asyncio.run(self._lag())
        if lag is not None and lag > MOST_LAG_MESSAGES:
            self._load.held.set()
        elif lag is not None:
            self._load.held.clear()

    async def _lag(self) -> int | None:
        names = GroupNames(self._group)
        try:
            async with connected(self._nats.settings(), "soak") as client:
                state = await ChangeStream(client, names).state()
                report = await StateBucket(client, names).read(worker_key("postgres"), WorkerReport)
        except Exception as error:  # noqa: BLE001  the broker is killed all the time
            print(f"lag not known: {type(error).__name__}")
            return None
        return state.last_sequence - report.value.sequence if state is not None and report is not None else None


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_a_thousand_kills_of_everything_lose_and_double_and_tear_nothing(
    source: Database, target: Database, nats: NatsServer, group: str
) -> None:
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"KILL_SEED={seed} SOAK_KILLS={KILLS}")
    RandomLoad.create_tables(source)
    load, watch = RandomLoad(source, seed, connections=2, most_rows=500, reconnects=True), BalanceWatch(target)
    keys = configuration(group, source, target, nats)
    started = time.monotonic()
    with (
        Supervised(PgsluiceProcess("replicator", config=keys, is_fresh=True)) as replicator,
        Supervised(PgsluiceProcess("worker", "postgres", config=keys, is_fresh=True)) as worker,
    ):
        replicator.process.wait_for_log("replicating")
        killer = Killer(replicator, worker, nats, source, target, seed)
        with load, watch:
            wait_until(lambda: watch.looks > 0, deadline_s=120, what="the first batch at the target")
            kill_all(killer, LagWatch(nats, group, load), replicator, worker, started)
            load.stop()
            equal(source, target, replicator, worker)
        audit = asyncio.run(audit_stream(nats.settings(), group))
    minutes = (time.monotonic() - started) / 60
    print(f"{sum(killer.killed.values())} kills in {minutes:.0f} minutes, seed {seed}: {dict(killer.killed)}")
    print(
        f"{load.transactions} transactions, {audit.changes} changes, {watch.looks} looks at the target, {len(watch.unequal)} torn"
    )
    print(f"ends: replicator {dict(replicator.ends)}, worker {dict(worker.ends)}")
    assert watch.unequal == []
    assert audit.problems == []
    assert load.transactions > 0


def kill_all(killer: Killer, lag: LagWatch, replicator: Supervised, worker: Supervised, started: float) -> None:
    while (killed := sum(killer.killed.values())) < KILLS:
        check_alive(replicator, worker)
        killer.kill_once()
        if killed % 5 == 0:
            lag.look()
        if killed % REPORT_EVERY == 0:
            print(f"{killed} kills, {time.monotonic() - started:.0f} s", flush=True)


def check_alive(*supervised: Supervised) -> None:
    for one in supervised:
        if one.stopped_by is not None:
            raise AssertionError(f"a process ended with {one.stopped_by}: {one.process.log()[-6000:]}")


def equal(source: Database, target: Database, replicator: Supervised, worker: Supervised) -> None:
    def is_equal() -> bool:
        check_alive(replicator, worker)
        return checksums(source) == checksums(target)

    wait_until(is_equal, deadline_s=CATCH_UP_DEADLINE_S, what="equal tables", interval_s=1)
