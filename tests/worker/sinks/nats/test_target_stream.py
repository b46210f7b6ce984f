"""What a target stream makes of JetStream's answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from nats.aio.client import Client

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TransientError
from pgsluice.worker.sinks.nats.atomic_unit import Unit
from pgsluice.worker.sinks.nats.outgoing import Ends, MessageSection
from pgsluice.worker.sinks.nats.target_stream import TargetLimits, TargetStream
from tests.servers import NatsServer

BATCHES_AT_ONCE = 50  # of one stream, unless nats-server is configured otherwise
LIMITS = TargetLimits(StreamSettings(1, (), 0, "none", 0.0), 0.0)


def subject(group: str) -> str:
    return f"{group}.rows"


def unit(group: str, messages: int) -> Unit:
    section = MessageSection()
    for index in range(messages):
        section.add(subject(group).encode(), b"0/3E8:%d" % (index + 1), b"{}", Ends.TRANSACTION)
    return Unit.of(section)


async def opened(client: Client, group: str) -> TargetStream:
    stream = TargetStream(client, group, [subject(group), f"pgsluice.position.{group}"], f"pgsluice.position.{group}", LIMITS)
    await stream.begin()
    return stream


def test_a_batch_of_which_the_server_knows_only_the_end_may_be_sent_again(nats_server: NatsServer, group: str) -> None:
    """As when its leader changed meanwhile, when the connection broke, or when the worker's machine slept for ten seconds."""

    async def publish() -> int:
        async with connected(nats_server.settings(), "test") as client:
            stream = await opened(client, group)
            await stream.publish(replace(unit(group, 3), first=None), b"{}")
            with pytest.raises(TransientError, match="refused a batch"):
                await stream.settled()
            state = await stream.state()
            return 0 if state is None else state.messages

    assert asyncio.run(publish()) == 0


def test_a_batch_that_is_one_too_many_at_once_may_be_sent_again(nats_server: NatsServer, group: str) -> None:
    """As when attempts that failed are still counted."""

    async def publish() -> None:
        async with connected(nats_server.settings(), "test") as client:
            stream = await opened(client, group)
            for number in range(BATCHES_AT_ONCE):
                await client.publish(subject(group), b"", headers={"Nats-Batch-Id": f"{number}", "Nats-Batch-Sequence": "1"})
            await stream.publish(unit(group, 1), b"{}")
            with pytest.raises(TransientError, match="refused a batch"):
                await stream.settled()

    asyncio.run(publish())
