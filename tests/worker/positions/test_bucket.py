"""The position of a worker in the state bucket: who may move it, and what a start finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.worker_records import position_key
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

FIRST, SECOND, THIRD = (Applied(n, 1000 * n, n, "2026-01-31T12:00:00Z", 10 * n, f"rules{n}") for n in (1, 2, 3))

NewPositions = Callable[[], BucketPositions]


@pytest.fixture
def new_positions(nats_server: NatsServer, group: str) -> Iterator[NewPositions]:
    """Makes what each process of one worker name has."""
    ensure_bucket(nats_server.settings(), group)
    made: list[BucketPositions] = []

    def make() -> BucketPositions:
        made.append(BucketPositions(nats_server.settings(), group, "w"))
        return made[-1]

    yield make
    for positions in made:
        positions.close()


def test_a_later_process_finds_what_was_stored_last(new_positions: NewPositions) -> None:
    positions = new_positions()
    assert positions.load() == NOTHING_APPLIED
    positions.store(FIRST)
    positions.store(SECOND)
    assert new_positions().load() == SECOND


def test_a_process_whose_position_was_moved_by_another_cannot_move_it(new_positions: NewPositions) -> None:
    first, second = new_positions(), new_positions()
    first.load()
    second.load()
    first.store(FIRST)
    with pytest.raises(TerminalError, match="another process moved the position of worker 'w'"):
        second.store(THIRD)
    first.store(SECOND)
    assert new_positions().load() == SECOND


def test_a_position_that_was_put_back_is_gone_on_from_at_the_next_start_and_moved_by_who_runs(
    new_positions: NewPositions, nats_server: NatsServer, group: str
) -> None:
    """As when the bucket is restored: what follows is applied again, or was applied by the process that knows of it."""

    async def stored(value: bytes | None = None) -> bytes:
        async with connected(nats_server.settings(), "test") as client:
            bucket = await client.jetstream().key_value(GroupNames(group).bucket)
            if value is not None:
                await bucket.put(position_key("w"), value)
            entry = await bucket.get(position_key("w"))
            assert entry.value is not None
            return entry.value

    running = new_positions()
    running.load()
    running.store(FIRST)
    older = asyncio.run(stored())
    running.store(SECOND)
    asyncio.run(stored(older))
    assert new_positions().load() == FIRST
    running.store(THIRD)
    assert new_positions().load() == THIRD


def test_a_write_whose_acknowledgement_was_lost_is_not_taken_for_another_process(new_positions: NewPositions) -> None:
    positions = new_positions()
    positions.load()
    positions.store(FIRST)
    heard_of = positions._revision
    positions.store(SECOND)
    positions._revision = heard_of  # as if the answer to the second write had not come
    positions.store(THIRD)
    assert new_positions().load() == THIRD


def test_a_position_of_a_version_that_did_not_copy_has_copied_nothing(
    new_positions: NewPositions, nats_server: NatsServer, group: str
) -> None:
    write_position(nats_server, group, {"sequence": 7, "commit_lsn": "0/1", "committed_at": 3, "stream_created": "then"})
    assert new_positions().load() == Applied(7, 1, 3, "then", snapshot_sequence=0)


def test_a_malformed_position_stops_the_start(new_positions: NewPositions, nats_server: NatsServer, group: str) -> None:
    write_position(nats_server, group, {"sequence": "many"})
    with pytest.raises(TerminalError, match=r"record position\.w .* is malformed: sequence is not of type int"):
        new_positions().load()


def write_position(nats_server: NatsServer, group: str, value: dict[str, Any]) -> None:
    async def write() -> None:
        async with connected(nats_server.settings(), "test") as client:
            await StateBucket(client, GroupNames(group)).put(position_key("w"), value)

    asyncio.run(write())
