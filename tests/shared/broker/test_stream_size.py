"""How large streams are made that nobody chose a size for, and brokers that are too small for us."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio
from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import LEAST_BYTES, MOST_BYTES, ChangeStream, share_of, trial_sizes
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.servers import Database, NatsServer, PgsluiceProcess

OPEN = StreamSettings(replicas=1, placement_tags=(), max_bytes=0, compression="none", retention_s=60)


@pytest.fixture
def small_server() -> Iterator[NatsServer]:
    with NatsServer(file_store="2GB") as server:
        yield server


@pytest_asyncio.fixture
async def small(small_server: NatsServer) -> AsyncIterator[Client]:
    async with connected(small_server.settings(), "test") as client:
        yield client


def test_sizes_are_tried_from_the_largest_down_to_the_least() -> None:
    sizes = list(trial_sizes())
    assert (sizes[0], sizes[-1]) == (8 * MOST_BYTES, LEAST_BYTES)
    assert sizes == sorted(sizes, reverse=True)
    assert [share_of(size) for size in (8 * MOST_BYTES, 4 << 30, LEAST_BYTES)] == [MOST_BYTES, 512 << 20, LEAST_BYTES]


async def test_a_large_broker_gives_each_stream_the_most(nats_server: NatsServer, group: str) -> None:
    async with connected(nats_server.settings(), "test") as client:
        assert (await ChangeStream(client, GroupNames(group)).ensure(OPEN)).max_bytes == MOST_BYTES


async def test_a_stream_keeps_its_size_until_one_is_chosen(nats_server: NatsServer, group: str) -> None:
    async with connected(nats_server.settings(), "test") as client:
        stream = ChangeStream(client, GroupNames(group))
        made = await stream.ensure(replace(OPEN, max_bytes=1 << 26))
        assert await stream.ensure(OPEN) == made
        assert (await stream.ensure(replace(OPEN, max_bytes=1 << 27))).max_bytes == 1 << 27


async def test_a_stream_that_was_left_at_a_trial_size_is_cut_at_the_next_start(nats_server: NatsServer, group: str) -> None:
    async with connected(nats_server.settings(), "test") as client:
        stream = ChangeStream(client, GroupNames(group))
        await stream._create(OPEN)
        assert (await stream.ensure(OPEN)).max_bytes == MOST_BYTES
        assert (await stream.ensure(OPEN)).max_bytes == MOST_BYTES, "it is cut once"


async def test_seven_streams_fit_where_ten_gigabytes_do_not_and_then_the_refusal_says_how_much_was_wanted(small: Client) -> None:
    made = 0
    with pytest.raises(TerminalError, match=r"stream pgsluice_small-\d_changes of 256 MiB: .*check stream-max-bytes"):  # noqa: PT012
        while made < 100:
            state = await ChangeStream(small, GroupNames(f"small-{made}")).ensure(OPEN)
            assert LEAST_BYTES <= state.max_bytes < MOST_BYTES
            made += 1
    assert made >= 7


def test_three_groups_with_a_copy_start_on_a_small_broker(source_database: Database, small_server: NatsServer) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    for number in range(3):
        keys = configuration(f"small-{number}", source_database, None, small_server, **{"copy-and-stream": True})
        with PgsluiceProcess("replicator", config=keys) as replicator:
            replicator.wait_for_log("starting Spark")
            assert "stream has a size that fits" in replicator.log()
            replicator.terminate()  # or its JVM, which is borrowed, would be killed with it
            assert replicator.wait() == 0, replicator.log()


def test_a_broker_that_takes_only_tiny_messages_is_refused_at_the_start(source_database: Database, group: str) -> None:
    with NatsServer(config="max_payload: 16384") as server:
        keys = configuration(group, source_database, None, server)
        for arguments in (["replicator"], ["worker", "stdout"]):
            with PgsluiceProcess(*arguments, config=keys) as process:
                assert process.wait() == 70
                assert "takes messages of 16384 bytes at most (max_payload): set max_payload to 65536 or more" in process.log()


async def test_a_record_larger_than_max_payload_is_refused_with_the_setting() -> None:
    with NatsServer(config="max_payload: 65536") as server:
        async with connected(server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames("small"))
            await bucket.ensure(OPEN)
            with pytest.raises(TerminalError, match="raise max_payload"):
                await bucket.put("tables", {"t": "x" * 70_000})
