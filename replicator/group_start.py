"""Prepares the source before a session streams: publication and slot as configured, and the group bound to them.

Everything is compared before anything is created or altered. The group's record in the state bucket binds it: the facts
that must not change between two starts. A first start that fails removes everything that it created.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nats.aio.client import Client

from pgsluice.replicator.membership.group_publication import GroupPublication
from pgsluice.replicator.membership.publication_watch import PublicationWatch
from pgsluice.replicator.progress import PublishedCounts
from pgsluice.replicator.source.publication import Publication, check_owner, drop_publication, find_publication
from pgsluice.replicator.source.slot import (
    ReplicationSlot,
    SlotPatience,
    check_failover,
    check_slot,
    create_slot,
    drop_slot,
    end_own_reader,
    find_slot,
    warn_of_running_ahead,
)
from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.replicator.source.walsender import SystemIdentity
from pgsluice.replicator.start_checks import check_origin, check_publication, check_source
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import GROUP_KEY, REPLICATOR_KEY, GroupRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.settings import PostgresSettings, ReplicatorSettings
from pgsluice.shared.errors import Cause, PgsluiceError, TransientError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, format_lsn

if TYPE_CHECKING:
    from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy

log = telemetry.logger(__name__)

Removal = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class MadeAtSource:
    """The objects that this process created, or tried to, and whether it bound the group."""

    publication: bool = False
    slot: bool = False
    record: bool = False


@dataclass(slots=True)
class Run:
    """The state that outlives a session: ``until`` once it is known, whether the publication was made, and what was
    published.

    ``is_copying``: tables are being copied; where to end is decided after that. ``copy`` is None for a group that only
    streams. ``is_configuration_new``: ``settings`` were replaced, and the group's tables are not brought to them yet.
    """

    settings: ReplicatorSettings
    names: GroupNames
    until: LSN | None = None
    is_copying: bool = False
    is_publication_ready: bool = False
    is_configuration_new: bool = False
    copy: PreparedCopy | None = None
    made: MadeAtSource = field(default_factory=MadeAtSource)
    counts: PublishedCounts = field(default_factory=PublishedCounts)
    pulse: Pulse = field(default_factory=Pulse)
    walsender: int = 0
    """The process of the source that serves the session, or served the one before; 0 before the first."""


@dataclass(frozen=True, slots=True)
class _FoundGroup:
    """The state before the checks; None for missing objects."""

    identity: SystemIdentity
    publication: Publication | None
    bound: GroupRecord | None
    slot: ReplicationSlot | None


async def prepare_group(
    run: Run, source: Source, facts: SourceFacts, identity: SystemIdentity, bucket: StateBucket, watch: PublicationWatch
) -> tuple[ReplicationSlot, GroupRecord]:
    """Returns the slot to be streamed from, and what the group is bound to. Raises UsageError or TerminalError when
    they do not belong together, TransientError while another process reads the slot."""
    found = await _find(source, run.names, identity, bucket)
    await _check(run, source, facts, found)
    publication = await _prepare_publication(run, source, bucket, watch, found)
    record = found.bound or await _bind_group(run, identity, facts.database, publication.oid, bucket)
    slot = found.slot or await _create_slot(run, source, facts)
    check_slot(slot, facts)
    if not record.slot_lsn:
        record = await _note_slot(bucket, record, format_lsn(slot.confirmed_flush_lsn))
    return slot, record


async def _find(source: Source, names: GroupNames, identity: SystemIdentity, bucket: StateBucket) -> _FoundGroup:
    publication = await find_publication(source, names)
    return _FoundGroup(identity, publication, await read_record(bucket), await find_slot(source, names))


async def _check(run: Run, source: Source, facts: SourceFacts, found: _FoundGroup) -> None:
    """Checks before anything is altered: another replicator may be reading the slot."""
    names, bound = run.names, found.bound
    if found.publication is not None:
        check_owner(found.publication, names)
    check_source(bound, names, found.identity, facts.database, found.slot)
    check_publication(bound, names, found.publication)
    check_origin(bound, run.settings.origin, facts.major_version)
    if run.settings.failover:
        check_failover(facts)
        if not run.is_publication_ready:
            await warn_of_running_ahead(source)
    if found.slot is not None:
        await end_own_reader(source, found.slot, run.walsender)
        check_slot(found.slot, facts)


async def _prepare_publication(
    run: Run, source: Source, bucket: StateBucket, watch: PublicationWatch, found: _FoundGroup
) -> Publication:
    if run.is_publication_ready:
        return await watch.verify()
    run.made.publication |= found.publication is None
    has_published = found.bound is not None and bool(found.bound.slot_lsn)
    group_publication = GroupPublication(run.settings, run.names, source, bucket, watch, run.copy)
    prepared = await group_publication.prepare(found.publication, has_published=has_published)
    run.is_publication_ready = True
    return prepared


async def _create_slot(run: Run, source: Source, facts: SourceFacts) -> ReplicationSlot:
    log.info("creating the replication slot; this waits for transactions that are open in the source", slot=run.names.slot)
    run.made.slot = True
    patience = SlotPatience(run.settings.source, run.settings.slot_timeout_s)
    return await create_slot(source, run.names, facts, run.settings.failover, patience)


async def read_record(bucket: StateBucket) -> GroupRecord | None:
    """Returns None before the group's first start."""
    entry = await bucket.read(GROUP_KEY, GroupRecord)
    return None if entry is None else entry.value


async def _bind_group(
    run: Run, identity: SystemIdentity, database: str, publication_oid: int, bucket: StateBucket
) -> GroupRecord:
    """Returns the group's record, made at the first start. Raises TransientError when another start came between."""
    names = run.names
    record = GroupRecord(
        group=names.group,
        system_id=identity.system_id,
        timeline=identity.timeline,
        database=database,
        publication=names.publication,
        publication_oid=publication_oid,
        slot=names.slot,
        slot_lsn="",
        created_at=datetime.now(UTC).isoformat(),
        origin=run.settings.origin,
    )
    if await bucket.create(GROUP_KEY, record) is None:
        raise TransientError(f"another replicator of group {names.group!r} started at the same time", "run only one", Cause.LOCK)
    run.made.record = True
    return record


async def note_timeline(bucket: StateBucket, record: GroupRecord, timeline: int) -> GroupRecord:
    """Remembers the timeline that is published from now on. Only after ``start_checks.check_history``."""
    if record.timeline == timeline:
        return record
    noted = replace(record, timeline=timeline)
    await bucket.put(GROUP_KEY, noted)
    return noted


async def _note_slot(bucket: StateBucket, record: GroupRecord, slot_lsn: str) -> GroupRecord:
    """Remembers that the slot was made and where it began, so that its absence means that it was lost."""
    noted = replace(record, slot_lsn=slot_lsn)
    await bucket.put(GROUP_KEY, noted)
    return noted


@dataclass(frozen=True, slots=True)
class FirstStart:
    """First start of a group that had no state bucket when the process began. If it fails, everything it created is
    removed.

    Otherwise it would reserve storage in NATS, keep WAL at the source, and bind the group to the mode that was tried.
    Once the stream runs (with ``--copy``: once the copy is prepared) the group exists, and only ``drop`` removes it.
    """

    names: GroupNames

    @classmethod
    async def look(cls, client: Client, names: GroupNames) -> FirstStart | None:
        """Returns None when this is no first start. Raises TransientError."""
        return None if await StateBucket(client, names).exists() else cls(names)

    async def undo(self, client: Client, source: PostgresSettings, made: MadeAtSource) -> None:
        """Removes what this process created, unless another replicator of the group began meanwhile. Logs what is left."""
        try:
            removals = await self._removals(client, source, made)
        except PgsluiceError as error:
            _say_left([error])
            return
        failures = [failure for removal in removals if (failure := await _failure(removal)) is not None]
        if failures:
            _say_left(failures)
        elif removals:
            log.info("the objects of this first start are removed", group=self.names.group)

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
    log.warning("the objects of this first start could not be removed: run 'pgsluice drop'", reason=text)


async def _failure(removal: Removal) -> PgsluiceError | None:
    try:
        await removal()
    except PgsluiceError as error:
        return error
    return None
