"""Requests to processes ("wishes"): one protocol for every kind.

A wish is a record under one key of the state bucket, and holds until it is changed. It is

    written        by ``WishKey.change``, which makes the new record out of the current one and compares its revision: when two
                   clients write at the same moment, both apply. A wish that holds already is not written again.
    seen           by ``SeenWish.look``, about once a second. It polls and does not watch: a watch is a consumer, which has to be
                   made again after each outage of the broker, and may then have missed a change. While the broker does not
                   answer, the wish that was seen last holds.
    acknowledged   by the process that obeys: it reports the revision, or what it holds by now, in a separate record. Where
                   the outcome is a part of the wish (orders, requests), the process changes it in the current record, and
                   never writes it from a record that it read before.

An order is added to the record, or replaces the order of the same verb. It never removes the order of another verb.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import Bucket, Entry
from pgsluice.shared.broker.record import R
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.process.retrying import RetryNews

LOOK_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class WishKey(Generic[R]):
    """The key of a wish. ``nothing`` applies until a first wish is written. Every method raises TransientError when
    NATS does not answer, and TerminalError when the record is of no known version."""

    key: str
    nothing: R

    async def read(self, bucket: Bucket) -> Entry[R]:
        """Returns revision 0 with ``nothing``."""
        return await bucket.read(self.key, type(self.nothing)) or Entry(self.nothing, 0)

    async def load(self, bucket: Bucket) -> R:
        return (await self.read(bucket)).value

    async def change(self, bucket: Bucket, change: Callable[[R], R]) -> Entry[R]:
        """Changes the wish, and returns it as it is then. ``change`` may be called several times."""
        return await bucket.change(self.key, self.nothing, change)


class SeenWish(Generic[R]):
    """A wish as a process saw it last. Used on one event loop; the attributes may be read by any thread."""

    def __init__(self, key: WishKey[R]) -> None:
        self.value = key.nothing
        self.revision = 0
        self._key = key

    async def look(self, bucket: Bucket) -> bool:
        """Reads the wish, and returns whether the record is another one than before. Raises as ``WishKey.read``."""
        entry = await self._key.read(bucket)
        is_new = entry.revision != self.revision
        self.value, self.revision = entry.value, entry.revision
        return is_new


async def follow(look: Callable[[], Awaitable[None]], what: str) -> None:
    """Calls ``look``, which reads and applies the wish, until cancelled. ``what`` names the wish in log messages."""
    news = RetryNews()
    while True:
        try:
            await look()
        except PgsluiceError as error:
            if news.is_due(error):
                log.warning("the requests of operators cannot be read, continuing as before", wish=what, reason=str(error))
        await asyncio.sleep(LOOK_INTERVAL_S)
