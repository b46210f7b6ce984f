"""Looking at a group again and again, over connections that stay open."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from nats.aio.client import Client

from pgsluice.console.status import GroupStatus, look
from pgsluice.replicator.source.slot_look import SlotLook
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.dead_letter_stream import LetterCounts
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.wire.names import GroupNames

CONNECT_PATIENCE_S = 5.0
SOURCE_PATIENCE_S = 1.0
"""Limit of the wait for the source, so that NATS's facts are not delayed longer."""
RATE_WINDOW_S = 5.0
"""Processes report once a second, at no common time: over less than some seconds a rate would jump."""


class Look(NamedTuple):
    """A status, with the monotonic clock's time of its read."""

    status: GroupStatus
    at_s: float


class Looks:
    """The newest status, and the one to compare it with."""

    def __init__(self, settings: StatusSettings) -> None:
        self._settings = settings
        self._names = GroupNames(settings.group)
        self._slot = SlotLook(settings.source, self._names, SOURCE_PATIENCE_S)
        self._letters = LetterCounts()
        self._client: Client | None = None
        self._kept: deque[Look] = deque()

    @property
    def newest(self) -> Look | None:
        return self._kept[-1] if self._kept else None

    @property
    def earlier(self) -> Look | None:
        """The oldest of the last RATE_WINDOW_S; None at the first read."""
        return self._kept[0] if len(self._kept) > 1 else None

    async def next(self) -> Look:
        """Raises TransientError when NATS does not answer; the next call tries again."""
        if self._client is None or self._client.is_closed:
            self._client = await connect(self._settings.nats, f"pgsluice status {self._names.group}", CONNECT_PATIENCE_S)
        found = Look(await look(self._client, self._names, self._slot, self._letters), time.monotonic())
        self._kept.append(found)
        while len(self._kept) > 2 and found.at_s - self._kept[0].at_s > RATE_WINDOW_S:
            self._kept.popleft()
        return found

    async def close(self) -> None:
        await self._slot.close()
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)
