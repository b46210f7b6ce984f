"""The position of a sink that has no better place for it: under ``position.<worker>`` in the group's state bucket.

Each write names the revision that this process read or wrote last, so of two processes that run one worker name only one can
move the position; the other stops.
"""

from __future__ import annotations

import uuid
from typing import Any

from nats.aio.client import Client

from shared.errors import TerminalError
from shared.jetstream import connect
from shared.lsn import format_lsn, parse_lsn
from shared.names import GroupNames
from shared.settings import NatsSettings
from shared.state import Entry, StateBucket, position_key
from worker.event_loop import EventLoopThread
from worker.sinks.sink import NOTHING_APPLIED, Applied

CLOSE_TIMEOUT_S = 5.0


class BucketPositions:
    """Blocking calls over a NATS connection of its own, made by ``load``. TransientError when NATS does not answer."""

    def __init__(self, settings: NatsSettings, group: str, worker: str) -> None:
        self._settings = settings
        self._names = GroupNames(group)
        self._worker = worker
        self._key = position_key(worker)
        self._writer = uuid.uuid4().hex
        self._revision: int | None = None
        self._loop: EventLoopThread | None = None
        self._client: Client | None = None
        self._bucket: StateBucket | None = None

    def load(self) -> Applied:
        """The stored position, NOTHING_APPLIED when there is none. The bucket must exist."""
        if self._loop is None:
            self._loop = EventLoopThread("pgsluice-positions")
        if self._client is None:
            self._client = self._loop.run(connect(self._settings, f"pgsluice worker {self._names.group}/{self._worker} position"))
        self._bucket = StateBucket(self._client, self._names)
        entry = self._loop.run(self._bucket.get(self._key))
        self._revision = entry.revision if entry else None
        return self._decode(entry) if entry else NOTHING_APPLIED

    def store(self, applied: Applied) -> None:
        """Durable when it returns. Raises TerminalError when another process moved the position since ``load``; after a
        TransientError it may or may not be stored, and may be stored again."""
        assert self._loop is not None, "load comes first"
        self._loop.run(self._store(applied))

    def close(self) -> None:
        """Ends the connection; nothing happens when there is none."""
        loop, client = self._loop, self._client
        self._loop = self._client = self._bucket = None
        if loop is None:
            return
        try:
            if client is not None:
                loop.run(client.close(), CLOSE_TIMEOUT_S)
        finally:
            loop.close()

    async def _store(self, applied: Applied) -> None:
        revision = await self._write(applied)
        if revision is None and await self._adopt_own_write():
            revision = await self._write(applied)
        if revision is None:
            raise TerminalError(
                f"another process moved the position of worker '{self._worker}' of group '{self._names.group}'",
                "give each worker of a group its own --name; the worker goes on from the stored position when started again",
            )
        self._revision = revision

    async def _write(self, applied: Applied) -> int | None:
        """The new revision; None when the position is not as this process left it."""
        assert self._bucket is not None, "load comes first"
        value = self._encode(applied)
        if self._revision is None:
            return await self._bucket.create(self._key, value)
        return await self._bucket.update(self._key, value, self._revision)

    async def _adopt_own_write(self) -> bool:
        """A write whose acknowledgement was lost leaves our own record under a revision we did not hear of."""
        assert self._bucket is not None, "load comes first"
        entry = await self._bucket.get(self._key)
        if entry is None or entry.value.get("writer") != self._writer:
            return False
        self._revision = entry.revision
        return True

    def _encode(self, applied: Applied) -> dict[str, Any]:
        return {
            "sequence": applied.sequence,
            "commit_lsn": format_lsn(applied.commit_lsn),
            "committed_at": applied.committed_at,
            "stream_created": applied.stream_created,
            "snapshot_sequence": applied.snapshot_sequence,
            "rules": applied.rules,
            "writer": self._writer,
        }

    def _decode(self, entry: Entry) -> Applied:
        try:
            return Applied(
                sequence=int(entry.value["sequence"]),
                commit_lsn=parse_lsn(entry.value["commit_lsn"]),
                committed_at=int(entry.value["committed_at"]),
                stream_created=str(entry.value["stream_created"]),
                snapshot_sequence=int(entry.value.get("snapshot_sequence", 0)),
                rules=str(entry.value.get("rules", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TerminalError(
                f"key {self._key} of the state bucket {self._names.bucket} is malformed ({type(error).__name__})",
                "something else wrote it; remove the key and the worker begins with the oldest message of the stream",
            ) from None
