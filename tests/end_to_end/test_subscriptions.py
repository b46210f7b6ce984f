"""The subscriptions sink as a process: from the source's commits to many real receivers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from pgsluice.console.subscriptions.challenge import CHALLENGE
from pgsluice.console.subscriptions.subscribing import SubscriptionWish, subscribe
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.subscriptions.subscription_settings import SubscribingSettings, SubscriptionSettings
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import APPLY_DEADLINE_S, Outcome, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.http_server import Answer, HttpServer, Received
from tests.waiting import wait_until

START_DEADLINE_S = 120.0
SECRET = "whsec_" + "c2VjcmV0" * 6
NEVER_TOLD = "in-the-path-4711"
RULES = "tables: {a: [{type: filter, column: id, parameters: {operator: gt, value: 10}}]}"


class Receivers:
    """Many receivers behind one server: each is a path. ``slow`` and ``dead`` ones answer when they are released; what is slow in
    its own time answers after ``slow_s``."""

    def __init__(self, server: HttpServer, slow_s: float = 0.0) -> None:
        self._server = server
        self._slow_s = slow_s
        self._lock = threading.Lock()
        self.released = threading.Event()
        self.found: dict[str, list[tuple[int, float]]] = defaultdict(list)
        """By path, the ids of rows as they were accepted, each with when."""
        server.answer = self._answer

    def _answer(self, request: Received) -> Answer:
        content = orjson.loads(request.body)
        if isinstance(content, dict) and content["type"] == CHALLENGE:
            return Answer(body=orjson.dumps({"challenge": content["challenge"]}))
        path = request.target.rpartition("/")[2]
        if path.startswith("dead") and not self.released.is_set():
            self.released.wait(60)
        if path.startswith("slow"):
            self._server.stopped.wait(self._slow_s)
        at = time.time()
        with self._lock:
            self.found[path] += [(each["after"]["id"], at) for each in content]
        return Answer()

    def ids(self, path: str) -> list[int]:
        """Without what came again."""
        return list(dict.fromkeys(number for number, _ in list(self.found[path])))


def keys_of(group: str, source: Database, nats: NatsServer, **more: Any) -> dict[str, Any]:
    own = {"subscriptions-secret": SECRET, "subscriptions-allow-hosts": ["127.0.0.1"], "subscriptions-pause-after": "1h"}
    return configuration(group, source, None, nats, **own | more)


def subscribe_all(nats: NatsServer, group: str, server: HttpServer, paths: Sequence[str], rules: str = "") -> None:
    common = SubscriptionSettings(SECRET, 20.0, "", ("127.0.0.1",))
    settings = SubscribingSettings(common, per_owner=10_000)

    async def run() -> None:
        async with connected(nats.settings(), "test") as client:
            bucket, names = StateBucket(client, GroupNames(group)), GroupNames(group)
            for path in paths:
                url = f"http://127.0.0.1:{server.port}/{NEVER_TOLD}/{path}"
                wish = SubscriptionWish(url, table="a", events=("insert",), rules=rules)
                await subscribe(bucket, client, names, wish, f"owner of {path}", settings)

    asyncio.run(run())


def listed(keys: dict[str, Any]) -> list[dict[str, Any]]:
    broker = {key: keys[key] for key in ("group", "nats-url")}
    process = PgsluiceProcess("subscriptions", "list", "--json", config=broker)
    return [json.loads(line) for line in succeed(Outcome(process, APPLY_DEADLINE_S)).stdout.splitlines()]


def all_get(receivers: Receivers, paths: Sequence[str], last: int, deadline_s: float = 120.0) -> None:
    """Waits until each has rows 1 to ``last``, in order."""
    wait_until(lambda: all(len(receivers.ids(path)) >= last for path in paths), deadline_s=deadline_s, what=f"{last} rows at all")
    assert all(receivers.ids(path) == list(range(1, last + 1)) for path in paths)


def test_receivers_that_are_away_hold_up_nobody_and_get_everything_when_they_are_back(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE a (id bigint PRIMARY KEY); CREATE TABLE b (id bigint PRIMARY KEY)")
    fast, dead = [f"fast{n}" for n in range(30)], [f"dead{n}" for n in range(3)]
    with HttpServer() as server:
        receivers = Receivers(server)
        keys = keys_of(group, source_database, nats_server)
        succeed(replicate(keys))
        subscribe_all(nats_server, group, server, [*fast, *dead])
        subscribe_all(nats_server, group, server, ["late"], RULES)
        with (
            PgsluiceProcess("replicator", config=keys) as replicator,
            PgsluiceProcess("worker", "subscriptions", config=keys) as worker,
        ):
            replicator.wait_for_log("replicating")
            for number in range(1, 21):
                source_database.execute(f"INSERT INTO a VALUES ({number}); INSERT INTO b VALUES ({number})")
            all_get(receivers, fast, 20)
            assert {receivers.ids(path) == [] for path in dead} == {True}
            receivers.released.set()
            all_get(receivers, dead, 20)
            wait_until(lambda: receivers.ids("late") == list(range(11, 21)), what="the rows that rules let through")
            states = wait_until(lambda: (found := listed(keys)) and found, what="the list")
            worker.terminate()
            assert worker.wait() == 0, worker.log()
            log = worker.log()
    assert {each["receiver"] for each in states} == {f"http://127.0.0.1:{server.port}"}
    assert {each["state"] for each in states} <= {"live", "behind", "failing"}
    assert NEVER_TOLD not in log + json.dumps(states)
    assert SECRET not in log


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_subscriptions_with_slow_and_dead_receivers_from_one_pass(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    """Prints how long after the commit the fast ones had a row, and how many messages were read again."""
    source_database.execute("CREATE TABLE a (id bigint PRIMARY KEY)")
    fast = [f"fast{n}" for n in range(940)]
    slow, dead = [f"slow{n}" for n in range(50)], [f"dead{n}" for n in range(10)]
    with HttpServer() as server:
        receivers = Receivers(server, slow_s=1.5)
        keys = keys_of(group, source_database, nats_server)
        succeed(replicate(keys))
        subscribe_all(nats_server, group, server, [*fast, *slow, *dead])
        with (
            PgsluiceProcess("replicator", config=keys) as replicator,
            PgsluiceProcess("worker", "subscriptions", config=keys) as worker,
        ):
            replicator.wait_for_log("replicating")
            source_database.execute("INSERT INTO a VALUES (1)")
            all_get(receivers, fast, 1, START_DEADLINE_S)
            committed = {}
            for number in range(2, 32):
                source_database.execute(f"INSERT INTO a VALUES ({number})")
                committed[number] = time.time()
                time.sleep(1.0)  # the pace of the commits; nothing is waited for
            all_get(receivers, fast, 31)
            receivers.released.set()
            all_get(receivers, [*slow, *dead], 31, 600.0)
            worker.terminate()
            assert worker.wait() == 0, worker.log()
    late = sorted(at - committed[number] for path in fast for number, at in receivers.found[path] if number > 1)
    print(f"fast: median {late[len(late) // 2]:.2f} s, p99 {late[len(late) * 99 // 100]:.2f} s, last {late[-1]:.2f} s")
    last_of_fast, first_of_slow = (
        choose(at for path in paths for number, at in receivers.found[path] if number == 31)
        for choose, paths in ((max, fast), (min, slow))
    )
    assert last_of_fast < first_of_slow, "nobody fast waited for somebody slow"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_worker_killed_at_random_moments_loses_nothing_for_anybody(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"KILL_SEED={seed}")
    choose = random.Random(seed)
    source_database.execute("CREATE TABLE a (id bigint PRIMARY KEY)")
    paths = [*(f"fast{n}" for n in range(40)), *(f"slow{n}" for n in range(5)), "dead0"]
    with HttpServer() as server:
        receivers = Receivers(server, slow_s=0.7)
        keys = keys_of(group, source_database, nats_server, **{"subscriptions-timeout": "2s"})
        succeed(replicate(keys))
        subscribe_all(nats_server, group, server, paths)
        number = 0
        with (
            PgsluiceProcess("replicator", config=keys) as replicator,
            PgsluiceProcess("worker", "subscriptions", config=keys) as worker,
        ):
            replicator.wait_for_log("replicating")
            for life in range(8):
                before = len(receivers.ids("fast0"))
                for _ in range(choose.randint(5, 60)):
                    number += 1
                    source_database.execute(f"INSERT INTO a VALUES ({number})")
                wait_until(
                    lambda before=before: len(receivers.ids("fast0")) > before,  # type: ignore[misc]
                    deadline_s=START_DEADLINE_S,
                    what="a row",
                )
                server.stopped.wait(choose.uniform(0, 0.5))
                if life == 5:
                    receivers.released.set()
                worker.kill()
                worker.start()
            number += 1
            source_database.execute(f"INSERT INTO a VALUES ({number})")
            all_get(receivers, paths, number, 600.0)
            worker.terminate()
            assert worker.wait() == 0, worker.log()
