"""A webhook worker is killed again and again under load; the receiver tells duplicates by the idempotency key alone."""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import psycopg
import pytest

from tests.end_to_end.test_webhook import webhook_configuration
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.http_server import HttpServer, Received
from tests.waiting import wait_until

KILLS = 30
COUNTERS = 300
START_DEADLINE_S = 120.0
CATCH_UP_DEADLINE_S = 600.0


class CountingLoad:
    """Raises counters by one, few or up to ``most`` of them in a transaction, until the context is left."""

    def __init__(self, database: Database, choose: random.Random, most: int, transactions_per_s: float) -> None:
        self._database = database
        self._choose = choose
        self._most = most
        self._transactions_per_s = transactions_per_s
        self._stopping = threading.Event()
        self._error: psycopg.Error | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)

    @staticmethod
    def create_table(database: Database) -> None:
        database.execute(
            "CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL);"
            f"INSERT INTO counters SELECT n, 0 FROM generate_series(1, {COUNTERS}) AS n"
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            with self._database.connect() as connection:
                while not self._stopping.wait(self._choose.expovariate(self._transactions_per_s)):
                    count = int(self._most ** self._choose.random())
                    ids = self._choose.sample(range(1, COUNTERS + 1), count)
                    connection.execute("UPDATE counters SET value = value + 1 WHERE id = ANY (%s)", [ids])
        except psycopg.Error as error:
            self._error = error


def without_duplicates(requests: Iterable[Received]) -> list[dict[str, Any]]:
    """What a receiver has that keeps idempotency keys."""
    seen: set[str] = set()
    objects = []
    for request in requests:
        key = request.headers["idempotency-key"]
        if key not in seen:
            seen.add(key)
            objects += request.objects
    return objects


def values_by_counter(objects: Iterable[dict[str, Any]]) -> dict[int, list[int]]:
    values: dict[int, list[int]] = defaultdict(list)
    for each in objects:
        values[each["after"]["id"]].append(each["after"]["value"])
    return values


def kill_at_random(worker: PgsluiceProcess, receiver: HttpServer, kills: int, choose: random.Random) -> None:
    """Each life of the worker ends at a random moment after its first request."""
    never = threading.Event()
    for _ in range(kills):
        before = len(receiver.requests)
        wait_until(lambda count=before: len(receiver.requests) > count, deadline_s=START_DEADLINE_S, what="a request")  # type: ignore[misc]
        never.wait(choose.uniform(0, 0.5))
        worker.kill()
        worker.start()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("form", "most", "transactions_per_s"), [("array", COUNTERS, 15), ("single", 10, 5)])
def test_a_worker_killed_thirty_times_loses_nothing_and_keeps_each_keys_order(
    form: str, most: int, transactions_per_s: float, source_database: Database, nats_server: NatsServer, group: str
) -> None:
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"KILL_SEED={seed}")
    choose = random.Random(seed)
    CountingLoad.create_table(source_database)
    with HttpServer() as receiver:
        receiver.delay_s = 0.01
        more = {"webhook-format": form, "webhook-batch-size": 50, "webhook-connections": 4}
        keys = webhook_configuration(group, source_database, nats_server, receiver, **more)
        with (
            PgsluiceProcess("replicator", config=keys) as replicator,
            PgsluiceProcess("worker", "webhook", config=keys) as worker,
        ):
            replicator.wait_for_log("replicating")
            with CountingLoad(source_database, random.Random(seed), most, transactions_per_s):
                kill_at_random(worker, receiver, KILLS, choose)
            counted = dict(source_database.execute("SELECT id, value FROM counters WHERE value > 0"))
            wait_until(
                lambda: {key: values[-1] for key, values in values_by_counter(receiver.objects()).items()} == counted,
                deadline_s=CATCH_UP_DEADLINE_S,
                what="all changes at the receiver",
                interval_s=3.0,
            )
            worker.terminate()
            assert worker.wait() == 0
    assert values_by_counter(without_duplicates(receiver.accepted)) == {key: list(range(1, n + 1)) for key, n in counted.items()}
    changes = sum(counted.values())
    print(f"{changes} changes, {len(receiver.objects()) - changes} of them came again, {len(receiver.accepted)} requests")
