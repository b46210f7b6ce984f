"""The views of all groups on one NATS: each is read once for all clients, whenever something has changed.

A group's processes report by writes to its state bucket, and each write is also an ordinary message: a plain
subscription to each group's is a bell, which needs no consumer and may be missed. A group that rang is read within
LOOK_INTERVAL_S, any other periodically. A group that was never started is included if it has a document: its units are
drafts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from pgsluice.console.documents.control_bucket import CONTROL_BUCKET
from pgsluice.console.documents.document_settings import Bounds, source_in
from pgsluice.console.documents.document_store import DocumentStore, StoredDocument, document_name
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.console.runner.group_units import units_of
from pgsluice.console.status import GroupStatus, look
from pgsluice.replicator.source.slot_look import SlotLook
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import find_groups
from pgsluice.shared.broker.dead_letter_stream import LetterCounts
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError
from pgsluice.shared.process.defect import unexpected
from pgsluice.shared.process.retrying import RetryNews
from pgsluice.shared.wire.names import GroupNames

LOOK_INTERVAL_S = 1.0
UNPROMPTED_S = 5.0
"""A group that does not ring is looked at so often, and less often where there are many."""
GROUPS_PER_S = 10
"""Number of groups read per second without having rung."""
LISTING_INTERVAL_S = 5.0
AT_ONCE = 8
SOURCE_PATIENCE_S = 0.5
"""Longest delay by a source that does not answer, for the read of its group and others."""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupView:
    """``status`` is from the newest successful read, at ``looked_at``; None before the first. ``problem`` is why a
    later one failed, "" when none did. ``number`` grows with every view that differs from the one before, over all
    groups, and over servers that follow each other: it begins with the time in milliseconds, so a reconnected client
    misses nothing. ``document`` is the revision of the group's document, None without one."""

    group: str
    number: int
    looked_at: TimeText = ""
    status: GroupStatus | None = None
    problem: str = ""
    document: int | None = None


class GroupLooks:
    """Call ``run`` in parallel to the server. ``documents`` name the wanted units, and within ``bounds`` the sources."""

    def __init__(self, client: Client, documents: DocumentStore[GroupDocument], bounds: Bounds) -> None:
        self._client = client
        self._documents = documents
        self._bounds = bounds
        self._watched: dict[str, _WatchedGroup] = {}
        self._rung: set[str] = set()
        self._unknown = False
        """True if a group that is not watched yet has written."""
        self._documented: set[str] = set()
        """Groups whose documents were written since they were read."""
        self._is_heard = False
        """True if writes are received."""
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._listed_at = float("-inf")
        self._listing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._news = RetryNews()
        self._at_once = asyncio.Semaphore(AT_ONCE)

    @property
    def views(self) -> list[GroupView]:
        """Returns the views by group."""
        return [self._watched[name].view for name in sorted(self._watched)]

    def view(self, group: str) -> GroupView | None:
        watched = self._watched.get(group)
        return None if watched is None else watched.view

    async def look_now(self, group: str) -> GroupView | None:
        """Returns the current view, for a client that has just made a change; None for an unknown group."""
        if group not in self._watched:
            await self._list()
        watched = self._watched.get(group)
        if watched is None:
            return None
        await self._look(watched)
        return watched.view

    def units_named(self, group: str) -> tuple[str, ...]:
        """Returns the units that the group's document names."""
        watched = self._watched.get(group)
        return () if watched is None else watched.units

    def renew(self, group: str) -> None:
        """Notes that the group's document changed; its next view shows that."""
        self._documented.add(group)
        self._unknown = True

    def changed(self) -> Coroutine[Any, Any, object]:
        """Waits until there is a view with a new number, or a group has gone, since the call."""
        return self._changed.wait()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        documents = await self._hear(CONTROL_BUCKET)
        self._is_heard = documents is not None
        try:
            while True:
                await self._round()
                await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            await _stop_hearing(documents)
            for watched in self._watched.values():
                await watched.close()

    async def _hear(self, bucket: str) -> Subscription | None:
        """Subscribes the bell to writes to the bucket; returns None when that fails."""
        try:
            return await self._client.subscribe(f"$KV.{bucket}.>", cb=self._ring, pending_msgs_limit=0, pending_bytes_limit=0)
        except nats.errors.Error as error:
            log.warning("the server does not hear of writes to a bucket", bucket=bucket, reason=type(error).__name__)
            return None

    async def _ring(self, message: Msg) -> None:
        """Notes which group changed: ``$KV.pgsluice_orders.worker.postgres``, or ``$KV.pgsluice-control.group.orders``."""
        _, bucket, key = message.subject.split(".", 2)
        documented = document_name(key, GroupDocument) if bucket == CONTROL_BUCKET else None
        if documented is not None:
            self.renew(documented)
            return
        prefix = GroupNames("x").bucket.removesuffix("x")
        if bucket.startswith(prefix):
            group = bucket.removeprefix(prefix)
            self._rung.add(group)
            self._unknown = self._unknown or group not in self._watched

    async def _round(self) -> None:
        now = time.monotonic()
        if self._unknown or now - self._listed_at >= LISTING_INTERVAL_S:
            try:
                await self._list()
            except PgsluiceError as error:
                if self._news.is_due(error):
                    log.warning("groups cannot be listed now", reason=str(error))
        rung, self._rung = self._rung, set()
        patience_s = max(UNPROMPTED_S, len(self._watched) / GROUPS_PER_S)
        due = [each for name, each in self._watched.items() if name in rung or now - each.looked_at_s >= patience_s]
        await asyncio.gather(*map(self._look, due))

    async def _list(self) -> None:
        """Lists groups that were started, and groups with only a document so far."""
        async with self._listing:
            self._unknown = False
            try:
                await self._list_once()
            except PgsluiceError:
                self._unknown = True
                raise

    async def _list_once(self) -> None:
        found, named = set(await find_groups(self._client)), set(await self._documents.names())
        drafts = {name for name in named - found if await self._document_of(name) is not None}
        for name in self._watched.keys() - found - drafts:
            gone = self._watched.pop(name)
            await gone.close()
            self._tell()
        for name in (self._documented if self._is_heard else named) & self._watched.keys():
            self._documented.discard(name)
            await self._read_document(self._watched[name])
            self._rung.add(name)
        for name in (found | drafts) - self._watched.keys():
            watched = _WatchedGroup(GroupNames(name), GroupView(name, next(self._numbers)))
            await self._read_document(watched)
            watched.bell = await self._hear(watched.names.bucket)
            self._watched[name] = watched
            self._documented.discard(name)
        self._listed_at = time.monotonic()

    async def _document_of(self, group: str) -> StoredDocument[GroupDocument] | None:
        """Returns None also for an unreadable document: the group exists nevertheless."""
        try:
            return await self._documents.find(group)
        except TerminalError as error:
            if self._news.is_due(error):
                log.warning("a group's document cannot be read", group=group, reason=str(error))
            return None

    async def _read_document(self, watched: _WatchedGroup) -> None:
        try:
            stored = await self._document_of(watched.names.group)
        except TransientError:
            self._documented.add(watched.names.group)
            raise
        revision = None if stored is None else stored.revision
        if revision == watched.document:
            return
        source, units = (None, ()) if stored is None else (source_in(stored.document, self._bounds), units_of(stored.document))
        async with watched.looking:
            before, watched.slot = watched.slot, SlotLook(source, watched.names, SOURCE_PATIENCE_S)
            watched.document, watched.units = revision, tuple(units)
        await before.close()

    async def _look(self, watched: _WatchedGroup) -> None:
        async with self._at_once, watched.looking:
            watched.looked_at_s = time.monotonic()
            before, problem = watched.view, ""
            status: GroupStatus | None
            try:
                status = await look(self._client, watched.names, watched.slot, watched.letters, watched.units)
            except PgsluiceError as error:
                status, problem = before.status, str(error)
            except Exception as error:  # noqa: BLE001  whatever a group's document or records made of it: others are looked at
                status, problem = before.status, str(unexpected(error, f"the check of group '{watched.names.group}'"))
                if problem != before.problem:
                    log.error("a group cannot be looked at", reason=problem)
            if (status, problem, watched.document) == (before.status, before.problem, before.document):
                return
            looked_at = before.looked_at if problem else datetime.now(UTC).isoformat()
            number = next(self._numbers)
            watched.view = GroupView(watched.names.group, number, looked_at, status, problem, watched.document)
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class _WatchedGroup:
    """One group, and its state from one read to the next."""

    def __init__(self, names: GroupNames, view: GroupView) -> None:
        self.names = names
        self.slot = SlotLook(None, names)
        self.document: int | None = None
        """The revision of the one that ``slot`` and ``units`` are of."""
        self.units: tuple[str, ...] = ()
        self.letters = LetterCounts()
        self.bell: Subscription | None = None
        self.view = view
        self.looked_at_s = float("-inf")
        self.looking = asyncio.Lock()
        """One read at a time: they share the slot's connection."""

    async def close(self) -> None:
        """Closes, after a read that is under way."""
        await _stop_hearing(self.bell)
        async with self.looking:
            await self.slot.close()


async def _stop_hearing(bell: Subscription | None) -> None:
    if bell is not None:
        with contextlib.suppress(nats.errors.Error):  # there may be no connection any more
            await bell.unsubscribe()
