"""The changes of a group as JSON lines, read from its stream: what a reader of any sink behind it has to see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream, StoredMessage
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.message import WHOLE, MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.sinks.lines.json_lines import encode_lines

FETCH_MESSAGES = 200
FETCH_BYTES = 16 * 1024 * 1024


def group_lines(nats: NatsSettings, group: str) -> list[dict[str, Any]]:
    """Of every change in its stream, in order. Messages in chunks are not understood."""
    return [line for message in asyncio.run(_messages(nats, group)) for line in _lines(message)]


def _lines(message: StoredMessage) -> Iterator[dict[str, Any]]:
    headers = MessageHeaders.decode(message.headers)
    assert headers.chunk == WHOLE, "the test's rows are too large"
    ordinal, sequence = headers.first.ordinal, message.sequence
    decoded = decode_changes(message.data, first_sequence=sequence, sequence=sequence, first_ordinal=ordinal)
    yield from (json.loads(line) for line in encode_lines(decoded))


async def _messages(nats: NatsSettings, group: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    async with connected(nats, "reader") as client:
        stream = ChangeStream(client, GroupNames(group))
        state = await stream.state()
        assert state is not None
        at = state.first_sequence
        while at <= state.last_sequence:
            found += await stream.fetch(at, FETCH_MESSAGES, FETCH_BYTES)
            at = found[-1].sequence + 1
    return found
