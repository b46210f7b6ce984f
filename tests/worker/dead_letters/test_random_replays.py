"""Letters of one row are applied in commit order or not at all: whatever is replayed, when, in which portions, and how often."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from pgsluice.shared.broker.connection import connect
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.postgres.writer import INLINE_BYTES
from tests.servers import Database, NatsServer
from tests.worker.dead_letters.replayed_history import KEYED, KEYLESS, ReplayedHistory
from tests.worker.sinks.postgres.conftest import Target

STREAM = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 24, compression="none", retention_s=60)


@pytest.fixture
def history(nats_server: NatsServer, group: str, target_database: Database) -> Iterator[Callable[[int], ReplayedHistory]]:
    """Makes the history of a seed, in a group of its own."""
    loop = EventLoopThread("test")
    client = loop.run(connect(nats_server.settings(), "test"))
    targets: list[Target] = []

    async def prepare(names: GroupNames) -> None:
        await ChangeStream(client, names).ensure(STREAM)
        await DeadLetterStream(client, names).ensure_like(names.changes_stream)

    def make(seed: int) -> ReplayedHistory:
        names = GroupNames(f"{group}-{seed}")
        loop.run(prepare(names))
        targets.append(Target(target_database, INLINE_BYTES))
        return ReplayedHistory(random.Random(seed), loop, client, names, targets[-1], KEYLESS if seed % 4 == 3 else KEYED)

    yield make
    for target in targets:
        target.close()
    loop.run(client.close())
    loop.close()


SHORT = (7, 107, 108, 112, 117, 136)
STEPS = 60


def walk(made: ReplayedHistory, seed: int) -> None:
    made.walk(STEPS)
    assert made.target() == made.source(), f"history {seed}:\n" + "\n".join(made.steps)


@pytest.mark.parametrize("seed", SHORT)
def test_source_and_target_are_equal_when_all_letters_are_replayed(history: Callable[[int], ReplayedHistory], seed: int) -> None:
    walk(history(seed), seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_source_and_target_are_equal_after_many_more_histories(history: Callable[[int], ReplayedHistory], first: int) -> None:
    for seed in range(first, first + 30):
        walk(history(seed), seed)
