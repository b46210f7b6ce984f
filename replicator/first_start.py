"""A group's first start that comes to nothing leaves nothing behind.

What a start made would reserve storage in NATS, keep WAL at the source, and bind the group to the mode that was tried.
Once the stream runs (with ``--copy``: once the copy is prepared) the group exists, and only ``drop`` removes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from nats.aio.client import Client

from pgsluice.replicator.source.publication import drop_publication
from pgsluice.replicator.source.slot import drop_slot
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import GROUP_KEY, REPLICATOR_KEY
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.wire.names import GroupNames

log = telemetry.logger(__name__)

Removal = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class MadeAtSource:
    """What this process made, or tried to, and whether it bound the group."""

    publication: bool = False
    slot: bool = False
    record: bool = False


@dataclass(frozen=True, slots=True)
class FirstStart:
    """Of a group that had no state bucket when the process began."""

    names: GroupNames

    @classmethod
    async def look(cls, client: Client, names: GroupNames) -> FirstStart | None:
        """None when this is no first start. Raises TransientError."""
        return None if await StateBucket(client, names).exists() else cls(names)

    async def undo(self, client: Client, source: PostgresSettings, made: MadeAtSource) -> None:
        """Removes what this process made, unless another replicator of the group began meanwhile. What is left is said."""
        try:
            removals = await self._removals(client, source, made)
        except PgsluiceError as error:
            _say_left([error])
            return
        failures = [failure for removal in removals if (failure := await _failure(removal)) is not None]
        if failures:
            _say_left(failures)
        elif removals:
            log.info("what this first start made is removed again", group=self.names.group)

    async def _removals(self, client: Client, source: PostgresSettings, made: MadeAtSource) -> list[Removal]:
        bucket = StateBucket(client, self.names)
        has_bucket = await bucket.exists()
        if has_bucket and (await bucket.get(REPLICATOR_KEY) or (await bucket.get(GROUP_KEY) and not made.record)):
            return []
        removals: list[Removal] = []
        if made.slot or made.publication:
            removals.append(lambda: self._undo_at_source(source, made))
        for stream in (ChangeStream(client, self.names), SnapshotStream(client, self.names)):
            state = await stream.state()
            if state is not None and state.is_made_here:
                removals.append(stream.delete)
        if has_bucket and removals:
            removals.append(bucket.destroy)
        return removals

    async def _undo_at_source(self, settings: PostgresSettings, made: MadeAtSource) -> None:
        source = await Source.connect(settings)
        try:
            if made.slot:
                await drop_slot(source, self.names)
            if made.publication:
                await drop_publication(source, self.names)
        finally:
            await source.close()


def _say_left(reasons: Sequence[PgsluiceError]) -> None:
    text = "; ".join(str(reason) for reason in reasons)
    log.warning("what this first start made could not be removed: run 'pgsluice drop'", reason=text)


async def _failure(removal: Removal) -> PgsluiceError | None:
    try:
        await removal()
    except PgsluiceError as error:
        return error
    return None
