"""The preparation of a copy before its first snapshot, and the records that workers need before the group's first change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nats.aio.client import Client

from pgsluice.replicator.membership.membership import Membership, load_membership
from pgsluice.replicator.membership.wanted_tables import select_wanted
from pgsluice.replicator.preflight.start import check_start
from pgsluice.replicator.snapshot.copy_state import CopyOrigin, CopyWishes, check_copy_origin, resume_copy
from pgsluice.replicator.snapshot.group_lock import lock_group
from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy
from pgsluice.replicator.snapshot.table_progress import TableProgress
from pgsluice.replicator.source.catalog import describe_tables
from pgsluice.replicator.source.publication import find_publication
from pgsluice.replicator.source.slot import check_slot, find_slot
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import SourceTable, parse_member_pattern
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord, now
from pgsluice.shared.broker.published_tables import store_tables
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.copy_settings import CopySettings
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames


async def prepare_copy(settings: ReplicatorSettings, copy: CopySettings, client: Client, source: Source) -> PreparedCopy:
    """Creates snapshot stream and state bucket, and writes the tables to copy into the ledger, so that workers wait for
    them.

    ``source`` is locked against another copy of the group for as long as it is connected. Raises UsageError or
    TerminalError when the copy may not begin or continue, TransientError when another replicator copies this group.
    """
    names = GroupNames(settings.group, settings.publication)
    bucket = StateBucket(client, names)
    facts = await check_start(settings, names, source, bucket)
    tables = await select_wanted(settings, names, source, bucket)
    system_id = await source.system_id()
    await lock_group(source, settings.group)
    if copy.then_stream and (slot := await find_slot(source, names)) is not None:
        check_slot(slot, facts)  # a process that only waits for another replicator's end must not change the ledger
    stream = SnapshotStream(client, names)
    state = await stream.ensure(settings.stream)
    await bucket.ensure(settings.stream)
    oids = [table.oid for table in tables]
    await store_tables(bucket, await describe_tables(source, names, oids, facts.major_version), source.encoding)
    ledger = Ledger(bucket)
    content = await ledger.load()
    mode = CopyMode.COPY_AND_STREAM if copy.then_stream else CopyMode.COPY
    origin = CopyOrigin(system_id, facts.database, state.created)
    check_copy_origin(content.snapshot, origin, mode)

    resumption = resume_copy(content, tables, _wishes(settings, copy, tables, await _membership(source, names, bucket)))
    progress = TableProgress(ledger, resumption.records, tries_again=copy.then_stream, pauses=settings.retry.copied_table)
    record = content.snapshot or _new_record(origin, mode)
    prepared = PreparedCopy(names, facts, system_id, stream, bucket, ledger, record, progress)
    if progress.waiting:
        await prepared.store(replace(prepared.record, state=CopyState.RUNNING, finished_at="", last_sequence=0))
    for changed in resumption.changed:
        await ledger.store_table(changed)
    for left in resumption.left:
        await ledger.store_table(left)
    return prepared


async def _membership(source: Source, names: GroupNames, bucket: StateBucket) -> Membership | None:
    """Returns None before the group's first session, and when it never streams."""
    membership = await load_membership(bucket)
    publication = None if membership is None else await find_publication(source, names)
    return membership if membership is None or publication is None else membership.settled(publication)


def _wishes(
    settings: ReplicatorSettings, copy: CopySettings, tables: Collection[SourceTable], membership: Membership | None
) -> CopyWishes:
    """Raises UsageError when the option ``recopy`` names a table that is not selected."""
    recopied: set[int] = set()
    for text in copy.recopy:
        pattern = parse_member_pattern(text, settings.schema)
        matching = {table.oid for table in tables if pattern.matches(table.schema, table.name)}
        if not matching:
            raise UsageError(
                f"'recopy': {text!r} is not among the tables of this group", "check 'recopy' and 'tables' (case matters)"
            )
        recopied |= matching
    return CopyWishes(
        retry_errored=copy.retry_errored,
        recopied=frozenset(recopied),
        followed=None if membership is None else membership.oids,
        known_names=frozenset() if membership is None else membership.known_names,
    )


def _new_record(origin: CopyOrigin, mode: CopyMode) -> SnapshotRecord:
    return SnapshotRecord(
        id="",
        lsn="",
        state=CopyState.RUNNING,
        mode=mode,
        started_at=now(),
        finished_at="",
        last_sequence=0,
        system_id=origin.system_id,
        database=origin.database,
        stream_created=origin.stream_created,
    )
