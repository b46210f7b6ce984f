"""``pgsluice drop``: removes what a group made in source and broker.

Each step is done whether or not the object is still there, so a drop that failed half-way is repeated. Objects in a target
database stay: they are the user's data.
"""

from __future__ import annotations

import asyncio

from replicator.publication import check_owner, drop_publication, find_publication
from replicator.slot import drop_slot
from replicator.source import Source
from shared import telemetry
from shared.dead_letter_stream import DeadLetterStream
from shared.jetstream import ChangeStream, SnapshotStream, connect, disconnect
from shared.names import TARGET_SCHEMA, GroupNames
from shared.settings import DropSettings
from shared.state import StateBucket

log = telemetry.logger(__name__)


def run(settings: DropSettings) -> None:
    """Raises TerminalError while a replicator reads the slot, TransientError when source or broker do not answer."""
    asyncio.run(_drop(settings))


async def _drop(settings: DropSettings) -> None:
    names = GroupNames(settings.group)
    await _drop_from_source(settings, names)
    client = await connect(settings.nats, f"pgsluice drop {names.group}")
    try:
        for stream in (ChangeStream(client, names), SnapshotStream(client, names), DeadLetterStream(client, names)):
            await stream.delete()
            log.info("stream is removed", stream=stream.name)
        bucket = StateBucket(client, names)
        await bucket.destroy()
        log.info("state bucket is removed", bucket=bucket.name)
    finally:
        await disconnect(client)
    log.info("targets are left as they are; drop their tables and their own schema by hand", target_schema=TARGET_SCHEMA)


async def _drop_from_source(settings: DropSettings, names: GroupNames) -> None:
    """The slot first: while it is in use nothing is removed. Nothing at all when the names are another group's."""
    source = await Source.connect(settings.source)
    try:
        publication = await find_publication(source, names)
        if publication is not None:
            check_owner(publication, names)
        existed = await drop_slot(source, names)
        log.info("replication slot is removed", slot=names.slot, existed=existed)
        existed = await drop_publication(source, names)
        log.info("publication is removed", publication=names.publication, existed=existed)
    finally:
        await source.close()
