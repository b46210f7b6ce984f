"""A target stream, as its readers see it, and sinks that write it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import StoredMessage, Stream
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import TransientError
from pgsluice.worker.sinks.nats.options import NatsSinkSettings
from pgsluice.worker.sinks.nats.sink import NatsSink
from pgsluice.worker.sinks.nats.subject_pattern import POSITION_SUBJECTS
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.settings import worker_settings


def nats_settings(stream: str, **changed: Any) -> NatsSinkSettings:
    settings: dict[str, Any] = {
        "lines": line_settings(),
        "stream": stream,
        "group": "",
        "subject": "",
        "large_messages": "dead-letter",
        "replicas": 1,
        "placement_tags": (),
        "max_bytes": 0,
        "max_age_s": 0.0,
    }
    return NatsSinkSettings(**settings | changed)


class TargetStreamReader:
    """What a stream holds by now, without the position."""

    def __init__(self, nats: NatsSettings, name: str) -> None:
        self._nats = nats
        self.name = name

    def stored(self) -> list[StoredMessage]:
        """Positions included."""
        return asyncio.run(self._stored())

    def messages(self) -> list[StoredMessage]:
        return [message for message in self.stored() if not message.headers["Nats-Subject"].startswith(POSITION_SUBJECTS)]

    def lines(self) -> list[dict[str, Any]]:
        """Chunks joined."""
        return [json.loads(data) for data in joined(self.messages())]

    def last_sequence(self) -> int:
        """0 while there is no stream, or nobody answers."""
        try:
            return asyncio.run(self._last_sequence())
        except TransientError:
            return 0

    async def _last_sequence(self) -> int:
        async with connected(self._nats, "reader") as client:
            state = await Stream(client, self.name, "").state()
            return 0 if state is None else state.last_sequence

    async def _stored(self) -> list[StoredMessage]:
        async with connected(self._nats, "reader") as client:
            stream = Stream(client, self.name, "")
            state = await stream.state()
            assert state is not None
            found: list[StoredMessage] = []
            at = state.first_sequence
            while at <= state.last_sequence:
                found += await stream.fetch(at, 1000, 1 << 22)
                at = found[-1].sequence + 1
            return found


def joined(messages: Iterable[StoredMessage]) -> list[bytes]:
    texts: list[bytes] = []
    for message in messages:
        if message.headers.get("Pgsluice-Chunk", "1/1").startswith("1/"):
            texts.append(b"")
        texts[-1] += message.data
    return texts


class NatsDestination:
    def __init__(self, nats: NatsSettings, group: str, **changed: Any) -> None:
        self._nats = nats
        self._group = group
        self._changed = changed
        self.reader = TargetStreamReader(nats, f"{group}-out")

    def new_sink(self, name: str = "sink") -> NatsSink:
        return NatsSink(worker_settings(self._group, self._nats, name), nats_settings(self.stream, **self._changed))

    @property
    def stream(self) -> str:
        """As the settings name it."""
        return self.reader.name
