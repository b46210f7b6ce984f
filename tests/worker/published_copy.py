"""A snapshot stream without a source: what the tasks of a copy would have published."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from nats.aio.client import Client

from pgsluice.shared.broker.ledger import CopyMode, CopyState, SnapshotRecord
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.message import Chunk
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.snapshot_message import EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER, SnapshotHeaders

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 28, compression="none", retention_s=60)
ORDERS, LINES = 11, 12


class CopyPublisher:
    """Publishes as the copy's tasks do: each message names the one before it on its subject."""

    def __init__(self, names: GroupNames, publish: Callable[[str, bytes, dict[str, str]], Awaitable[int]]) -> None:
        self._names = names
        self._publish = publish
        self._last: dict[str, tuple[int, int]] = {}

    async def begin(self, oid: int, attempt: int = 1, data: bytes = b"begin") -> int:
        headers = SnapshotHeaders("first", oid, attempt, None, 1, 0, 0, 0, False)
        return await self._send(self._names.snapshot_begin_subject(f"first{attempt}", oid), data, headers)

    async def rows(self, oid: int, data: bytes, chunk: Chunk | None = None, *, range_number: int = 1) -> int:
        headers = SnapshotHeaders("first", oid, 1, range_number, 1, 5, 5, len(data), False, chunk or Chunk(1, 1))
        return await self._send(self._names.snapshot_range_subject("first", oid, range_number), data, headers)

    async def _send(self, subject: str, data: bytes, headers: SnapshotHeaders) -> int:
        number, sequence = self._last.get(subject, (0, 0))
        fenced = replace(headers, number=number + 1).encode() | {EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER: str(sequence)}
        self._last[subject] = (number + 1, await self._publish(subject, data, fenced))
        return self._last[subject][1]


async def copy_publisher(client: Client, group: str) -> CopyPublisher:
    """Makes the group's snapshot stream, too."""
    names = GroupNames(group)
    await SnapshotStream(client, names).ensure(SETTINGS)

    async def publish(subject: str, data: bytes, headers: dict[str, str]) -> int:
        return (await client.jetstream().publish(subject, data, headers=headers)).seq

    return CopyPublisher(names, publish)


def snapshot_record(state: CopyState, last_sequence: int = 0) -> SnapshotRecord:
    """What the ledger says of the copy as a whole."""
    return SnapshotRecord("first", "0/1", state, CopyMode.COPY_AND_STREAM, "2026-01-31", "", last_sequence, "1", "shop", "")
