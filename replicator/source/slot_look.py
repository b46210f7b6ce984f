"""Reads a group's slot periodically, over one connection, and reports it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pgsluice.replicator.source.slot import ReplicationSlot, find_slot
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.alerts.slot_record import SLOT_KEY, TELLING_INTERVAL_S, SlotRecord
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.wire.names import GroupNames

ANSWER_DEADLINE_S = 10.0
_RETRY_S = 5.0

SlotAnswer = tuple[ReplicationSlot | None, str]
"""The slot (None: it does not exist), or why it is not known."""

log = telemetry.logger(__name__)


class SlotLook:
    """``settings`` is None when no source was given. Connects at the first read, and again after a failure.

    A read waits for ``patience_s`` (None: as long as the source may take). After that it returns the earlier answer,
    and a later call the new one.
    """

    def __init__(self, settings: PostgresSettings | None, names: GroupNames, patience_s: float | None = None) -> None:
        self._settings = settings
        self._names = names
        self._patience_s = patience_s
        self._source: Source | None = None
        self._asking: asyncio.Task[SlotAnswer] | None = None
        self._known: SlotAnswer = None, "the source has not answered yet"

    async def look(self) -> SlotAnswer:
        if self._settings is None:
            return None, "no source given (--host, --dbname, --user)"
        if self._asking is None:
            self._asking = asyncio.create_task(self._answer(self._settings))
        asking = self._asking
        await asyncio.wait({asking}, timeout=self._patience_s)
        if asking.done():
            self._known, self._asking = asking.result(), None
        return self._known

    async def close(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            await cancel([asking])
        await self._disconnect()

    async def _answer(self, settings: PostgresSettings) -> SlotAnswer:
        try:
            return await asyncio.wait_for(self._find(settings), ANSWER_DEADLINE_S), ""
        except TimeoutError:
            await self._disconnect()
            return None, f"the source has not answered for {ANSWER_DEADLINE_S:g} s"
        except PgsluiceError as error:
            await self._disconnect()
            return None, str(error)

    async def _disconnect(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    async def _find(self, settings: PostgresSettings) -> ReplicationSlot | None:
        if self._source is None:
            self._source = await Source.connect(settings)
        return await find_slot(self._source, self._names)


async def tell_of_slot(settings: PostgresSettings, names: GroupNames, bucket: Callable[[], StateBucket | None]) -> None:
    """Reports the slot, until it is cancelled, for processes without a connection to the source. While that fails the
    record grows old."""
    slot_look = SlotLook(settings, names)
    try:
        while True:
            is_told = await _tell(slot_look, bucket())
            await asyncio.sleep(TELLING_INTERVAL_S if is_told else _RETRY_S)
    finally:
        await slot_look.close()


async def _tell(slot_look: SlotLook, bucket: StateBucket | None) -> bool:
    """Returns False when there is nothing to report, or no connection."""
    slot, _ = await slot_look.look()
    if slot is None or bucket is None:
        return False
    try:
        await bucket.put(SLOT_KEY, record_of(slot))
    except PgsluiceError as error:
        log.debug("the slot's record cannot be written now", reason=str(error))
        return False
    return True


def record_of(slot: ReplicationSlot) -> SlotRecord:
    """Returns the slot's record for other processes."""
    return SlotRecord(slot.name, slot.wal_status or "", slot.lost, slot.lag_bytes, slot.safe_wal_bytes)
