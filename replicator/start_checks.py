"""Compares source, stream and records before a group runs, and before it streams: they must belong together.

First whether the group may run like this at all; then the source, its publication and its slot with the group's record;
then the stream with the slot, with the replicator's record and with the source's history. Slot, stream and bucket are
compared at every start of a session, because each of the three can be replaced or restored by others, and continuing
would leave a silent gap. The source itself can go back in its history, and then reuses the LSNs of published changes:
so the stream must not be beyond the end of the source's WAL, nor beyond the place where the source left the timeline
that was published from. If that is inconclusive, the server's messages decide (``Published.is_due``).
"""

from __future__ import annotations

from pgsluice.replicator.resume import ResumePoint
from pgsluice.replicator.source.publication import Publication, check_identity, gone
from pgsluice.replicator.source.slot import ReplicationSlot
from pgsluice.replicator.source.walsender import SystemIdentity, WalSender
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.halt import check_halt
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger
from pgsluice.shared.broker.replicator_records import ANY_ORIGIN, GroupRecord, ReplicatorRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.errors import START_AGAIN, HistoryError, TerminalError, UsageError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, format_lsn, parse_lsn

ORIGINS_SINCE = 16


async def check_records(bucket: StateBucket, *, copies: bool) -> None:
    """Checks that the group may run with these settings, before it creates or writes anything. Raises TerminalError or
    UsageError.
    """
    if await bucket.exists():
        await check_halt(bucket)
        if not copies:
            await check_streaming_alone(bucket)


async def check_streaming_alone(bucket: StateBucket) -> None:
    """Raises UsageError when a group with a copy is started without it: workers would wait for it, or changes be missing."""
    snapshot = await Ledger(bucket).load_snapshot()
    if snapshot is None:
        return
    if snapshot.mode is CopyMode.COPY:
        raise UsageError(
            "this group was copied with mode copy; the changes since then are not known",
            f"to copy and continue with the changes, {START_AGAIN} and --mode copy-and-stream",
        )
    if snapshot.state is CopyState.RUNNING:
        raise UsageError(
            "the copy of this group's tables is not finished",
            "start with --mode copy-and-stream, which finishes it, or run 'pgsluice drop' to start over with --mode stream",
        )


def check_source(
    bound: GroupRecord | None, names: GroupNames, identity: SystemIdentity, database: str, slot: ReplicationSlot | None
) -> None:
    """Raises TerminalError when the group is bound to another source, or when slot and record do not know of each other.

    To be called before anything is made in the source.
    """
    if bound is None:
        if slot is not None:
            raise TerminalError(
                f"replication slot {names.slot} exists, but NATS knows nothing of group {names.group!r}: its state was lost, or "
                "this is another NATS",
                f"check nats-url, or {START_AGAIN}",
            )
        return
    if (bound.system_id, bound.database) != (identity.system_id, database):
        raise TerminalError(
            f"group {bound.group!r} replicates database {bound.database!r} of system {bound.system_id}, "
            f"the source is database {database!r} of system {identity.system_id}",
            f"check host and dbname; for another source use another group, or {START_AGAIN}",
        )
    if slot is None and bound.slot_lsn:
        raise TerminalError(
            f"replication slot {names.slot} is gone, and with it the changes since it was last confirmed", START_AGAIN
        )
    if bound.timeline != identity.timeline and not (slot is not None and slot.failover):
        raise TerminalError(
            f"the source moved from timeline {bound.timeline} to {identity.timeline} (a failover or a restore) and the slot "
            "did not move with it",
            f"{START_AGAIN}; slots made with failover: true survive a failover on PostgreSQL 17 and later",
        )


def check_publication(bound: GroupRecord | None, names: GroupNames, publication: Publication | None) -> None:
    """Raises TerminalError when the group's publication is gone, or is another one than at its first start."""
    if bound is None:
        return
    if bound.publication != names.publication:
        raise TerminalError(
            f"this group follows publication {bound.publication}, not {names.publication}",
            f"give the same publication as before; for another one {START_AGAIN}",
        )
    if publication is None:
        raise gone(names)
    check_identity(publication, bound.publication_oid)


def check_origin(bound: GroupRecord | None, origin: str, major_version: int) -> None:
    """Raises UsageError when the server knows no origins, or when the group began with others: changes left out until
    then, or from now on, could not be distinguished from a loss."""
    if origin != ANY_ORIGIN and major_version < ORIGINS_SINCE:
        raise UsageError(f"origin: {origin} needs PostgreSQL {ORIGINS_SINCE}, the source is {major_version}", "set origin to any")
    if bound is not None and bound.origin != origin:
        raise UsageError(
            f"this group was started with origin: {bound.origin}, not with {origin}",
            f"set origin to {bound.origin}; to change it, {START_AGAIN}",
        )


def check_agreement(
    stream_name: str,
    state: StreamState,
    point: ResumePoint,
    recorded: ReplicatorRecord | None,
    slot: ReplicationSlot,
    created_lsn: LSN,
) -> None:
    """Raises TerminalError when the broker lost published messages or another client moved the slot.

    ``created_lsn`` is where the slot began: LSNs confirmed beyond that must be in the stream or in the record.
    """
    if recorded is not None and recorded.stream_created != state.created:
        raise HistoryError(f"stream {stream_name} was deleted and created again: published changes are gone", START_AGAIN)
    if recorded is not None and recorded.stream_sequence > state.last_sequence:
        raise HistoryError(
            f"stream {stream_name} ends at {state.last_sequence}, but had acknowledged {recorded.stream_sequence}: "
            "the broker lost data",
            START_AGAIN,
        )
    in_stream = point.published.flushed if point.published.last is not None else LSN(0)
    known = max(created_lsn, in_stream, parse_lsn(recorded.flushed_lsn) if recorded else LSN(0))
    if slot.confirmed_flush_lsn > known:
        raise HistoryError(
            f"replication slot {slot.name} is at {slot.confirmed_flush}, but stream {stream_name} ends at {format_lsn(known)}: "
            "the broker lost data, or another client moved or recreated the slot",
            START_AGAIN,
        )


async def check_history(walsender: WalSender, stream_name: str, point: ResumePoint, slot: ReplicationSlot, timeline: int) -> int:
    """Returns the source's timeline; ``timeline`` is the one that was published from. No other process reads the slot
    by now, so the server's answers are newer than what they are compared with. Raises HistoryError."""
    identity = await walsender.identify()
    switch_point = None
    if identity.timeline > timeline:
        switch_point = await walsender.switch_point(timeline, identity)
    _check_source_history(stream_name, point, slot, identity, timeline, switch_point)
    return identity.timeline


def _check_source_history(
    stream_name: str, point: ResumePoint, slot: ReplicationSlot, identity: SystemIdentity, timeline: int, switch_point: LSN | None
) -> None:
    """Raises HistoryError when the source went back before published or confirmed LSNs. ``timeline`` is the one that
    was published from; when the source left it, ``switch_point`` is where."""
    in_stream = point.published.flushed if point.published.last is not None else LSN(0)
    known = max(in_stream, slot.confirmed_flush_lsn)
    if timeline != identity.timeline and (switch_point is None or known > switch_point):
        left = "at an unknown place" if switch_point is None else f"at {format_lsn(switch_point)}"
        raise HistoryError(
            f"the source left timeline {timeline} {left} for timeline {identity.timeline}, and stream {stream_name} contains "
            f"transactions of timeline {timeline} up to {format_lsn(known)}: those in between do not exist on the new one",
            f"{START_AGAIN}; with synchronized_standby_slots set at the source a failover slot is never ahead of its standby",
        )
    if known > identity.wal_end:
        raise HistoryError(
            f"stream {stream_name} and slot {slot.name} are at {format_lsn(known)}, the source's WAL ends at "
            f"{format_lsn(identity.wal_end)}: the source went back in its history (a restored backup, snapshot or disk)",
            START_AGAIN,
        )
