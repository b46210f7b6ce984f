"""How fast does ``pgsluice worker nats`` publish a backlog that is in the group's stream, message by message?

The backlog are inserts in transactions of 1,000 rows, as in the scenario ``backlog``. The worker is warm, and suspended until the
group's stream holds everything; a run ends when the target stream does, as its state tells. Then all its messages are read: each
position once, in order. *Publisher alone* sends messages like these, made before, and does nothing else: what the server takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks import data
from benchmarks.backlog import RATE
from benchmarks.bare_publisher import BATCH, BarePublisher
from benchmarks.group import DEADLINE_S, Group
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.processes import ProcessWatch
from benchmarks.servers import Servers, start_servers
from benchmarks.warm_drain import drained
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import Stream
from pgsluice.shared.wire.message import ID_HEADER
from pgsluice.shared.wire.position import Position
from tests.waiting import wait_until_async

NAME = "nats_sink"
ROWS = 500_000
WARM_UP_ROWS = 50_000
CONTESTANT, ALONE = "worker nats", "publisher alone"
LOOK_INTERVAL_S = 0.02


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers:
        for repetition in options.repetitions:
            yield _drain(servers, repetition, rows)
            yield _sent(servers, repetition, rows)


def _drain(servers: Servers, repetition: int, rows: int) -> Run:
    name, stream = f"nats_sink_{repetition}", f"OUT{repetition}"
    source, target = servers.source.create_database(name), servers.target.create_database(name)
    group = Group(name.replace("_", "-"), servers, source, target, **{"nats-stream": stream})

    def wait(messages: int) -> None:
        asyncio.run(reached(servers, stream, messages))

    elapsed_s, usage = drained(servers, group, "nats", (WARM_UP_ROWS, rows), {}, wait)
    asyncio.run(_check(servers, stream, WARM_UP_ROWS + rows))
    return Run(NAME, CONTESTANT, repetition, {RATE: rows / elapsed_s}, rows, usage)


def _sent(servers: Servers, repetition: int, rows: int) -> Run:
    publisher = BarePublisher(servers.nats, f"ALONE{repetition}")
    asyncio.run(publisher.make_stream())
    batches = publisher.frames(rows)
    with ProcessWatch(servers.roots()) as watch:
        elapsed_s = publisher.send(batches)
    return Run(NAME, ALONE, repetition, {RATE: BATCH * len(batches) / elapsed_s}, rows, watch.usage())


async def reached(servers: Servers, name: str, sequence: int) -> None:
    async with connected(servers.nats.settings(), "benchmark") as client:
        stream = Stream(client, name, "")

        async def is_reached() -> bool:
            state = await stream.state()
            return state is not None and state.last_sequence >= sequence

        await wait_until_async(is_reached, deadline_s=DEADLINE_S, what=f"message {sequence}", interval_s=LOOK_INTERVAL_S)


async def _check(servers: Servers, name: str, total: int) -> None:
    """Raises DifferenceError for what the stream should not hold."""
    async with connected(servers.nats.settings(), "benchmark") as client:
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
    goals=(at_least(CONTESTANT, RATE, 100_000),),
    plotted=(RATE,),
    measure=measure,
)
