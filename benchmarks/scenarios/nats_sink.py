"""How fast does ``pgsluice worker nats`` publish a backlog that is in the group's stream, message by message?

The backlog are inserts in transactions of 1,000 rows, as in the scenario ``backlog``, after a warm-up of the same. The rate is
that of the backlog: from the moment when the target stream holds the whole warm-up to the one when it holds everything, as its
state tells. Then all its messages are read: each position once, in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from nats.aio.client import Client

from benchmarks import data
from benchmarks.backlog import RATE
from benchmarks.data import EVENTS
from benchmarks.group import DEADLINE_S
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.processes import ProcessWatch
from benchmarks.servers import Servers, start_servers
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import Stream
from pgsluice.shared.wire.message import ID_HEADER
from pgsluice.shared.wire.position import Position
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import replicate, succeed
from tests.servers import Database, PgsluiceProcess

NAME = "nats_sink"
ROWS = 500_000
WARM_UP_ROWS = 100_000
WORKER = "worker nats"
LOOK_INTERVAL_S = 0.02


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers:
        source = servers.source.create_database("nats_sink")
        data.create_table(source, EVENTS)
        keys = {n: _keys(servers, source, n) for n in options.repetitions}
        for each in keys.values():
            succeed(replicate(each))
        data.insert_in_parts(source, EVENTS, WARM_UP_ROWS + rows)
        for repetition, each in keys.items():
            succeed(replicate(each))
            yield _drain(servers, each, repetition, rows)


def _keys(servers: Servers, source: Database, repetition: int) -> dict[str, object]:
    return configuration(f"sink-{repetition}", source, None, servers.nats, **{"spark": {}, "nats-stream": f"OUT{repetition}"})


def _drain(servers: Servers, keys: dict[str, object], repetition: int, rows: int) -> Run:
    total = WARM_UP_ROWS + rows
    with PgsluiceProcess("worker", "nats", config=keys) as worker, ProcessWatch(servers.roots() | {WORKER: worker.pid}) as watch:
        elapsed_s = asyncio.run(_watch(servers, str(keys["nats-stream"]), total))
        worker.terminate()
        worker.wait(DEADLINE_S)
    return Run(NAME, WORKER, repetition, {RATE: rows / elapsed_s}, rows, watch.usage())


async def _watch(servers: Servers, name: str, total: int) -> float:
    """How long the stream grew from the end of the warm-up to its own. Raises DifferenceError for what it should not hold."""
    async with connected(servers.nats.settings(), "benchmark") as client:
        stream = Stream(client, name, "")
        begun_at, begun = await _reached(stream, WARM_UP_ROWS)
        ended_at, _ = await _reached(stream, total)
        await _check(client, name, total)
        return (ended_at - begun_at) * (total - WARM_UP_ROWS) / (total - begun)


async def _reached(stream: Stream, sequence: int) -> tuple[float, int]:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        state = await stream.state()
        if state is not None and state.last_sequence >= sequence:
            return time.monotonic(), state.last_sequence
        await asyncio.sleep(LOOK_INTERVAL_S)
    raise TimeoutError(f"stream {stream.name} did not reach message {sequence}")


async def _check(client: Client, name: str, total: int) -> None:
    stream, at, before = Stream(client, name, ""), 1, Position.parse("0/0:0")
    while at <= total:
        for message in await stream.fetch(at, 2000, 1 << 22):
            position = Position.parse(message.headers[ID_HEADER])
            if message.sequence != at or position <= before:
                raise data.DifferenceError(f"stream {name} has {position} at message {message.sequence}, behind {before}")
            at, before = at + 1, position


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of inserts that worker nats publishes, a message for each",
    goals=(at_least(WORKER, RATE, 100_000),),
    plotted=(RATE,),
    measure=measure,
)
