"""What a group is bound to, under ``group`` in the state bucket: the facts that must not change between two starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgsluice.replicator.source.publication import Publication, check_identity, gone
from pgsluice.replicator.source.slot import ReplicationSlot
from pgsluice.replicator.source.walsender import SystemIdentity
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import ANY_ORIGIN, GROUP_KEY, GroupRecord
from pgsluice.shared.errors import TerminalError, TransientError, UsageError
from pgsluice.shared.wire.names import GroupNames

ORIGINS_SINCE = 16

_START_AGAIN = "run 'pgsluice drop' and start again with an empty target"


@dataclass(frozen=True, slots=True)
class BoundRecord:
    """A record as the bucket holds it, with the revision that a change must name."""

    record: GroupRecord
    revision: int


async def read_record(bucket: StateBucket) -> BoundRecord | None:
    """None before the group's first start."""
    entry = await bucket.read(GROUP_KEY, GroupRecord)
    return None if entry is None else BoundRecord(entry.value, entry.revision)


def check_source(
    bound: BoundRecord | None, names: GroupNames, identity: SystemIdentity, database: str, slot: ReplicationSlot | None
) -> None:
    """Raises TerminalError when the group is bound to another source, or when slot and record do not know of each other.

    To be called before anything is made in the source.
    """
    if bound is None:
        if slot is not None:
            raise TerminalError(
                f"replication slot {names.slot} exists, but NATS knows nothing of group {names.group!r}: its state was lost, or "
                "this is another NATS",
                f"check nats-url, or {_START_AGAIN}",
            )
        return
    record = bound.record
    if (record.system_id, record.database) != (identity.system_id, database):
        raise TerminalError(
            f"group {record.group!r} replicates database {record.database!r} of system {record.system_id}, "
            f"the source is database {database!r} of system {identity.system_id}",
            f"check host and dbname; for another source use another group, or {_START_AGAIN}",
        )
    if slot is None and record.slot_lsn:
        raise TerminalError(
            f"replication slot {names.slot} is gone, and with it the changes since it was last confirmed", _START_AGAIN
        )
    if record.timeline != identity.timeline and not (slot is not None and slot.failover):
        raise TerminalError(
            f"the source moved from timeline {record.timeline} to {identity.timeline} (a failover or a restore) and the slot "
            "did not move with it",
            f"{_START_AGAIN}; slots made with failover: true survive a failover on PostgreSQL 17 and later",
        )


def check_publication(bound: BoundRecord | None, names: GroupNames, publication: Publication | None) -> None:
    """Raises TerminalError when the group's publication is gone, or is another one than at its first start."""
    if bound is None:
        return
    if bound.record.publication != names.publication:
        raise TerminalError(
            f"this group follows publication {bound.record.publication}, not {names.publication}",
            f"give the same publication as before; for another one {_START_AGAIN}",
        )
    if publication is None:
        raise gone(names)
    check_identity(publication, bound.record.publication_oid)


def check_origin(bound: BoundRecord | None, origin: str, major_version: int) -> None:
    """Raises UsageError when the server knows no origins, or when the group began with others: what was left out until then, or
    would be from now on, nobody could tell from a loss."""
    if origin != ANY_ORIGIN and major_version < ORIGINS_SINCE:
        raise UsageError(f"origin: {origin} needs PostgreSQL {ORIGINS_SINCE}, the source is {major_version}", "set origin to any")
    if bound is not None and bound.record.origin != origin:
        raise UsageError(
            f"this group was started with origin: {bound.record.origin}, not with {origin}",
            f"set origin to {bound.record.origin}; to change it, {_START_AGAIN}",
        )


async def bind_group(
    bucket: StateBucket,
    bound: BoundRecord | None,
    names: GroupNames,
    identity: SystemIdentity,
    database: str,
    publication_oid: int,
    origin: str,
) -> GroupRecord:
    """The group's record after the checks, made at the first start. Raises TransientError when another start came between."""
    if bound is None:
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
            origin=origin,
        )
        revision = await bucket.create(GROUP_KEY, record)
    else:
        record, revision = bound.record, bound.revision
    if revision is None:
        raise TransientError(f"another replicator of group {names.group!r} started at the same time", "run only one")
    return record


async def note_timeline(bucket: StateBucket, record: GroupRecord, timeline: int) -> GroupRecord:
    """Remembers the timeline that is published from now on. Only after ``resume.check_source_history``."""
    if record.timeline == timeline:
        return record
    noted = replace(record, timeline=timeline)
    await bucket.put(GROUP_KEY, noted)
    return noted


async def note_slot(bucket: StateBucket, record: GroupRecord, slot_lsn: str) -> GroupRecord:
    """Remembers that the slot was made and where it began, so that its absence means that it was lost."""
    noted = replace(record, slot_lsn=slot_lsn)
    await bucket.put(GROUP_KEY, noted)
    return noted
