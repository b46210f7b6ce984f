"""The histories of a group's tables and types, under ``schema.<oid>`` in the state bucket, and the log of its definitions.

Both are written before what depends on them is published: a session that goes back finds in the bucket what it needs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from pgsluice.replicator.definitions.history import History, Version
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.definition_log import DefinitionLog, load_log, store_log
from pgsluice.shared.broker.record import malformed, pack, unpack
from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import decode_defined, encode_defined

_PREFIX = "schema."

_ENVELOPE_BYTES = 8 * 1024
"""The room in a message for everything of a record but its packed versions."""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """``versions`` is packed: a position and the definition after it, for each."""

    name: str
    versions: str

    MALFORMED_REMEDY: ClassVar[str] = "delete the key, then start the replicator again: tables are described by the catalog then"


class HistoryStore:
    """Every method raises TransientError when NATS does not answer."""

    def __init__(self, bucket: StateBucket) -> None:
        self._bucket = bucket

    async def load(self) -> dict[int, History]:
        """Returns histories by oid. Raises TerminalError for a record that ``write`` never produces."""
        keys = [key for key in await self._bucket.keys() if key.startswith(_PREFIX)]
        found = await asyncio.gather(*map(self._read, keys))
        return {int(key.removeprefix(_PREFIX)): history for key, history in zip(keys, found, strict=True)}

    async def write(self, histories: dict[int, History]) -> None:
        """Writes the histories. Leaves out the oldest versions of one that does not fit into a message: a session that begins
        before those asks the catalog."""
        most_bytes = self._bucket.max_payload - _ENVELOPE_BYTES
        records = {oid: _record(each, most_bytes) for oid, each in histories.items()}
        await asyncio.gather(*(self._bucket.put(f"{_PREFIX}{oid}", record) for oid, record in records.items()))

    async def load_log(self) -> DefinitionLog:
        """Returns the published definitions. Raises TerminalError for a record that ``write_log`` never produces."""
        return await load_log(self._bucket)

    async def write_log(self, log: DefinitionLog) -> None:
        await store_log(self._bucket, log)

    async def _read(self, key: str) -> History:
        entry = await self._bucket.read(key, HistoryRecord)
        if entry is None:
            return History()
        try:
            versions = unpack(entry.value.versions)
            return History(Version(Position.parse(str(position)), decode_defined(fields)) for position, fields in versions)
        except (KeyError, TypeError, ValueError, WireError) as error:
            raise malformed(key, self._bucket.described, type(error).__name__, HistoryRecord.MALFORMED_REMEDY) from None


def _record(history: History, most_bytes: int) -> HistoryRecord:
    newest = history.versions[-1].defined
    versions = [[str(version.position), encode_defined(version.defined)] for version in history.versions]
    packed = pack(versions)
    while len(packed) > most_bytes and versions:
        versions = versions[(len(versions) + 3) // 4 :]
        packed = pack(versions)
    return HistoryRecord(f"{newest.schema}.{newest.name}", packed)
