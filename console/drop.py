"""``pgsluice drop``: removes what a group made in source and broker.

Each step is done whether or not the object is still there, so a drop that failed half-way is repeated. The two halves do not wait
for each other: what cannot be removed at the source is named at the end, and ``--nats-only`` and ``--source-only`` serve when the
other side is gone for good. Objects in a target database stay: they are the user's data. A group that a worker publishes has
nothing at the source.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from pgsluice.replicator.definitions.capture import find_capture, remove_capture
from pgsluice.replicator.source.publication import check_owner, drop_publication, find_publication
from pgsluice.replicator.source.slot import PLUGIN, check_not_in_use, drop_slot, find_slot
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, connected, disconnect
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.broker.worker_records import LEASE_DURATION_S, lease_key
from pgsluice.shared.config.settings import DropSettings, NatsSettings, PostgresSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.wire.names import TARGET_SCHEMA, GroupNames

log = telemetry.logger(__name__)


def run(settings: DropSettings) -> None:
    """Raises TerminalError while a replicator reads the slot, or the worker runs that publishes the group (then nothing is
    removed), and at the end for what is left; TransientError when source or broker do not answer."""
    asyncio.run(drop(settings))


async def drop(settings: DropSettings) -> None:
    """Drops the group, on a running event loop."""
    names = GroupNames(settings.group)
    remains: list[PgsluiceError] = []
    publisher = None if settings.nats is None else await publishing_worker(settings.nats, names.group)
    if settings.nats is not None and publisher is not None:
        await _check_stopped(settings.nats, names, *publisher)
    elif settings.source is not None:
        remains = await _drop_from_source(settings.source, names)
    if settings.nats is not None:
        await _drop_from_nats(settings.nats, names, source_is_done=settings.source is not None)
    if publisher is not None:
        log.info("if it does not publish again, 'pgsluice forget' removes its worker", group=publisher[0], worker=publisher[1])
    log.info("targets are left as they are; drop their tables and their own schema by hand", target_schema=TARGET_SCHEMA)
    if remains:
        raise _remaining(remains)


def is_published_by_worker(settings: NatsSettings, group: str) -> bool:
    """Returns whether a worker publishes the group: then it has nothing at the source. False when NATS cannot be read."""
    return asyncio.run(publishing_worker(settings, group)) is not None


async def publishing_worker(settings: NatsSettings, group: str) -> tuple[str, str] | None:
    """Returns group and name of the worker that publishes ``group``; None when a replicator does, and when NATS cannot
    be read."""
    with contextlib.suppress(PgsluiceError):
        async with connected(settings, f"pgsluice drop {group}") as client:
            bucket = StateBucket(client, GroupNames(group))
            entry = await bucket.read(GROUP_KEY, GroupRecord) if await bucket.exists() else None
            return None if entry is None else entry.value.publishing_worker
    return None


async def _check_stopped(settings: NatsSettings, names: GroupNames, group: str, worker: str) -> None:
    async with connected(settings, f"pgsluice drop {names.group}") as client:
        bucket, key = StateBucket(client, GroupNames(group)), lease_key(worker)
        is_taken = await bucket.exists() and await bucket.get(key) is not None
        age_s = await bucket.age_s(key) if is_taken else None
        if age_s is not None and age_s <= LEASE_DURATION_S:
            raise TerminalError(
                f"worker '{worker}' of group '{group}' runs, and publishes group '{names.group}'",
                f"stop it first; one that was killed is taken for running for {LEASE_DURATION_S:.0f} seconds",
            )


async def _drop_from_source(settings: PostgresSettings, names: GroupNames) -> list[PgsluiceError]:
    """Drops; returns reasons for objects left. The slot first: while it is in use nothing is removed, nor when the
    names are another group's."""
    try:
        source = await Source.connect(settings)
    except (UsageError, TerminalError, TransientError) as error:
        raise type(error)(
            error.fact, f"{error.remedy}; if this source is gone permanently, --nats-only removes the group's objects in NATS"
        ) from None
    remains: list[PgsluiceError] = []
    try:
        await _check_group(source, names)
        for remove in (_remove_slot, _remove_capture, _remove_publication):
            try:
                await remove(source, names)
            except (TerminalError, TransientError) as error:
                remains.append(error)
        return remains
    finally:
        await source.close()


async def _check_group(source: Source, names: GroupNames) -> None:
    publication = await find_publication(source, names)
    try:
        if publication is not None:
            check_owner(publication, names)
        await find_capture(source, names)
    except UsageError as error:
        remedy = "give the group's own spelling; --nats-only removes the objects of this spelling in NATS"
        raise UsageError(error.fact, remedy) from None
    slot = await find_slot(source, names)
    if slot is not None and slot.plugin == PLUGIN:
        check_not_in_use(slot)


async def _remove_slot(source: Source, names: GroupNames) -> None:
    existed = await drop_slot(source, names)
    log.info("replication slot is removed", slot=names.slot, existed=existed)


async def _remove_capture(source: Source, names: GroupNames) -> None:
    """Removes the capture; call it before dropping the publication, which it would report."""
    existed = await remove_capture(source, names)
    log.info("capture of schema changes is removed", existed=existed)


async def _remove_publication(source: Source, names: GroupNames) -> None:
    existed = await drop_publication(source, names)
    log.info("publication is removed", publication=names.publication, existed=existed)


async def _drop_from_nats(settings: NatsSettings, names: GroupNames, *, source_is_done: bool) -> None:
    try:
        client = await connect(settings, f"pgsluice drop {names.group}")
    except (TerminalError, TransientError) as error:
        so_far = "the group's objects at the source are done;  " if source_is_done else ""
        remedy = f"{error.remedy}; {so_far}if this NATS is gone permanently, use --source-only alone"
        raise type(error)(error.fact, remedy) from None
    try:
        for stream in (ChangeStream(client, names), SnapshotStream(client, names), DeadLetterStream(client, names)):
            await stream.delete()
            log.info("stream is removed", stream=stream.name)
        bucket = StateBucket(client, names)
        await bucket.destroy()
        log.info("state bucket is removed", bucket=bucket.name)
    finally:
        await disconnect(client)


def _remaining(errors: Sequence[PgsluiceError]) -> PgsluiceError:
    kind = TransientError if any(isinstance(error, TransientError) for error in errors) else TerminalError
    facts = "; ".join(error.fact for error in errors)
    return kind(f"not everything is removed: {facts}", "; ".join(dict.fromkeys(error.remedy for error in errors)))
