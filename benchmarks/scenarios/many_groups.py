"""A server of 200 groups whose state is in the broker: how fast the overview comes, how soon all are seen, what it costs.

The groups run nowhere; what their processes would have written is there. Every eighth request meets a group that has just told
something new.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from nats.aio.client import Client

from benchmarks.measurement import Options, Run, Scenario, at_most
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.wire.names import GroupNames
from tests.console.server.served import Served
from tests.recorded_group import WORKERS, record
from tests.servers import NatsServer
from tests.waiting import wait_until

NAME = "many_groups"
CONTESTANT = "server"
GROUPS = 200
REQUESTS = 200
REQUESTS_PER_NEWS = 8


def measure(options: Options) -> Iterator[Run]:
    names = [f"group-{number}" for number in range(options.rows or GROUPS)]
    with NatsServer() as nats:
        asyncio.run(_record_all(nats, names))
        for repetition in options.repetitions:
            with tempfile.TemporaryDirectory() as directory, Served(nats.url, Path(directory)) as server:
                yield Run(NAME, CONTESTANT, repetition, _figures(nats, server, names), 0)


def _figures(nats: NatsServer, server: Served, names: list[str]) -> dict[str, float]:
    began_at = time.monotonic()
    with server.client() as client:

        def all_seen() -> bool:
            views = client.get("/groups").json()["groups"]
            return len(views) == len(names) and all(view["status"] is not None for view in views)

        wait_until(all_seen, deadline_s=60, what="every group")
        seen_s = time.monotonic() - began_at
        durations = []
        for number in range(REQUESTS):
            if number % REQUESTS_PER_NEWS == 0:
                asyncio.run(_tell(nats, names[number % len(names)], number))
            started = time.perf_counter()
            answer = client.get("/groups")
            durations.append(time.perf_counter() - started)
            assert len(answer.json()["groups"]) == len(names)
    process = psutil.Process(server.process.pid)
    cpu_before, looked_at = sum(process.cpu_times()[:2]), time.monotonic()
    wait_until(lambda: time.monotonic() - looked_at > 5, what="five seconds of nobody asking")
    return {
        "overview_p95_ms": 1000 * sorted(durations)[int(len(durations) * 0.95)],
        "all_seen_s": seen_s,
        "memory_mb": process.memory_info().rss / 1e6,
        "unasked_cpu_s": sum(process.cpu_times()[:2]) - cpu_before,
    }


async def _record_all(nats: NatsServer, names: list[str]) -> None:
    async with connected(nats.settings(), "benchmark") as client:
        for name in names:
            await record(client, name)


async def _tell(nats: NatsServer, group: str, number: int) -> None:
    async def tell(client: Client) -> None:
        await StateBucket(client, GroupNames(group)).put(worker_key(WORKERS[0]), WorkerReport(0, batches=number))

    async with connected(nats.settings(), "benchmark") as client:
        await tell(client)


SCENARIO = Scenario(
    name=NAME,
    title="a server of 200 groups",
    goals=(at_most(CONTESTANT, "overview_p95_ms", 200), at_most(CONTESTANT, "memory_mb", 200)),
    plotted=("overview_p95_ms",),
    measure=measure,
)
