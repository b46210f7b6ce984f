"""What a group is bound to, under ``group`` in the state bucket: the facts that must not change between two starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from shared.errors import TerminalError, TransientError
from shared.state import GROUP_KEY, StateBucket

_START_AGAIN = "run 'pgsluice drop' and start again with an empty target"


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """``slot_lsn`` is where the slot began, "" until it was made; ``publication_oid`` is the publication's identity."""

    group: str
    system_id: str
    timeline: int
    database: str
    publication: str
    publication_oid: int
    slot: str
    slot_lsn: str
    created_at: str


async def bind_group(bucket: StateBucket, found: GroupRecord, *, failover: bool) -> tuple[GroupRecord, bool]:
    """The group's record, and whether it was made now, from ``found``. ``failover``: the slot is one that moves to a standby.

    Raises TerminalError when the group is bound to something else than ``found``.
    """
    entry = await bucket.get(GROUP_KEY)
    if entry is None:
        record = replace(found, created_at=datetime.now(UTC).isoformat())
        if await bucket.create(GROUP_KEY, asdict(record)) is None:
            raise TransientError(f"another replicator of group {found.group!r} started at the same time", "run only one")
        return record, True
    record = GroupRecord(**entry.value)
    _check(record, found, failover)
    bound = replace(found, slot_lsn=record.slot_lsn, created_at=record.created_at)
    if bound != record and await bucket.update(GROUP_KEY, asdict(bound), entry.revision) is None:
        raise TransientError(f"another replicator of group {found.group!r} started at the same time", "run only one")
    return bound, False


def _check(record: GroupRecord, found: GroupRecord, failover: bool) -> None:
    if record.system_id != found.system_id or record.database != found.database:
        raise TerminalError(
            f"group {record.group!r} replicates database {record.database!r} of system {record.system_id}, "
            f"the source is database {found.database!r} of system {found.system_id}",
            f"check host and dbname; for another source use another group, or {_START_AGAIN}",
        )
    if record.timeline != found.timeline and not failover:
        raise TerminalError(
            f"the source moved from timeline {record.timeline} to {found.timeline} (a failover or a restore) and the slot "
            "did not move with it",
            f"{_START_AGAIN}; slots made with failover: true survive a failover on PostgreSQL 17 and later",
        )
    if record.publication_oid != found.publication_oid:
        raise TerminalError(
            f"publication {record.publication} was dropped and made again: changes in between were not published", _START_AGAIN
        )


async def note_slot(bucket: StateBucket, record: GroupRecord, slot_lsn: str) -> GroupRecord:
    """Remembers that the slot was made and where it began, so that its absence means that it was lost."""
    noted = replace(record, slot_lsn=slot_lsn)
    await bucket.put(GROUP_KEY, asdict(noted))
    return noted
