"""One session: from the checks to the end of the stream.

Everything a session knows it reads anew from source and broker, so a session that failed is repaired by the next one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client

from pgsluice.replicator.assembler import Assembler
from pgsluice.replicator.first_start import MadeAtSource
from pgsluice.replicator.membership.group_publication import GroupPublication
from pgsluice.replicator.membership.group_record import (
    bind_group,
    check_origin,
    check_publication,
    check_source,
    note_slot,
    note_timeline,
    read_record,
)
from pgsluice.replicator.membership.publication_watch import PublicationWatch
from pgsluice.replicator.progress import Progress
from pgsluice.replicator.publisher import Publisher
from pgsluice.replicator.receiver import Feedback, Published, Receiver, status_interval_s
from pgsluice.replicator.recorder import Recorder
from pgsluice.replicator.resume import ResumePoint, check_agreement, check_source_history, find_resume_point
from pgsluice.replicator.retention import run_retention
from pgsluice.replicator.source.publication import Publication, check_owner, find_publication
from pgsluice.replicator.source.slot import (
    ReplicationSlot,
    SlotPatience,
    check_failover,
    check_slot,
    create_slot,
    find_slot,
    warn_of_running_ahead,
)
from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.replicator.source.walsender import WalSender
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY, GroupRecord, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.lsn import LSN, format_lsn, parse_lsn
from pgsluice.shared.wire.names import GroupNames

STOP_DEADLINE_S = 20.0
CANCEL_INTERVAL_S = 0.05

log = telemetry.logger(__name__)


@dataclass(slots=True)
class Run:
    """What outlives a session: ``until`` once it is known, whether the publication was made, and what was published.

    ``is_copying``: tables are being copied; where to end is decided after that.
    """

    settings: ReplicatorSettings
    names: GroupNames
    until: LSN | None = None
    is_copying: bool = False
    is_publication_ready: bool = False
    made: MadeAtSource = field(default_factory=MadeAtSource)
    counts: Published = field(default_factory=Published)


@asynccontextmanager
async def open_session(run: Run, client: Client) -> AsyncIterator[Session]:
    """Checks everything, makes what is missing and starts the replication stream; closes both source connections at the end.

    Raises UsageError or TerminalError when it would not be safe or not possible to go on, TransientError when a later attempt
    may succeed.
    """
    source = await Source.connect(run.settings.source)
    try:
        facts = await source.check()
        walsender = await WalSender.connect(run.settings.source)
        try:
            yield await _prepare(run, client, source, facts, walsender)
        finally:
            await walsender.close()
    finally:
        await source.close()


async def _prepare(run: Run, client: Client, source: Source, facts: SourceFacts, walsender: WalSender) -> Session:
    settings, names = run.settings, run.names
    stream, bucket = ChangeStream(client, names), StateBucket(client, names)
    state = await stream.ensure(settings.stream)
    await bucket.ensure(settings.stream)
    watch = PublicationWatch(settings, names, source, bucket)
    slot, record = await _prepare_source(run, source, facts, walsender, bucket, watch)

    id_prefix = f"{record.system_id}/{names.slot}/"
    point = await find_resume_point(stream, state, id_prefix, slot.confirmed_flush_lsn)
    entry = await bucket.read(REPLICATOR_KEY, ReplicatorRecord)
    check_agreement(stream.name, state, point, entry.value if entry else None, slot, parse_lsn(record.slot_lsn))
    timeline = await _check_source_history(walsender, stream, point, slot, record)
    await note_timeline(bucket, record, timeline)
    if run.until is None and settings.until_lsn and not run.is_copying:
        run.until = await find_until(settings.until_lsn, source)

    progress = Progress(slot.confirmed_flush_lsn, point.end.sequence)
    publisher = Publisher(client, stream, id_prefix, point.end, progress.acknowledged)
    assembler = Assembler(point.published)
    receiver = Receiver(walsender, source, assembler, publisher, progress, run.counts, run.until)
    feedback = Feedback(walsender, progress, receiver, status_interval_s(facts.wal_sender_timeout_ms))
    recorder = Recorder(bucket, state.created, progress, run.counts)
    retention = functools.partial(run_retention, stream, SnapshotStream(client, names), bucket, settings.stream.retention_s)
    await recorder.write()
    await walsender.start(names.slot, names.publication, slot.confirmed_flush_lsn, settings.origin)
    log.info(
        "replicating",
        slot=names.slot,
        stream=stream.name,
        start_lsn=format_lsn(slot.confirmed_flush_lsn),
        published=point.published.last or "nothing",
        sequence=point.end.sequence,
    )
    return Session(receiver, publisher, feedback, recorder, retention, watch)


async def _check_source_history(
    walsender: WalSender, stream: ChangeStream, point: ResumePoint, slot: ReplicationSlot, record: GroupRecord
) -> int:
    """The source's timeline. Nobody else reads the slot by now, so what the server says is newer than what it is held against."""
    identity = await walsender.identify()
    switch_point = None
    if identity.timeline > record.timeline:
        switch_point = await walsender.switch_point(record.timeline, identity)
    check_source_history(stream.name, point, slot, identity, record.timeline, switch_point)
    return identity.timeline


async def _prepare_source(
    run: Run,
    source: Source,
    facts: SourceFacts,
    walsender: WalSender,
    bucket: StateBucket,
    watch: PublicationWatch,
) -> tuple[ReplicationSlot, GroupRecord]:
    """Publication and slot as they should be, and the group bound to them."""
    names = run.names
    identity = await walsender.identify()
    found = await find_publication(source, names)
    if found is not None:
        check_owner(found, names)
    bound = await read_record(bucket)
    slot = await find_slot(source, names)
    check_source(bound, names, identity, facts.database, slot)
    check_publication(bound, names, found)
    check_origin(bound, run.settings.origin, facts.major_version)
    if run.settings.failover:
        check_failover(facts)
        if not run.is_publication_ready:
            await warn_of_running_ahead(source)
    run.made.publication |= found is None
    if slot is not None:
        check_slot(slot, facts)  # before anything is altered: another replicator may be reading it
    has_published = bound is not None and bool(bound.record.slot_lsn)
    publication = await _prepare_publication(run, source, bucket, watch, found, has_published)
    record = await bind_group(bucket, bound, names, identity, facts.database, publication.oid, run.settings.origin)
    run.made.record |= bound is None
    if slot is None:
        log.info("creating the replication slot; this waits for transactions that are open in the source", slot=names.slot)
        run.made.slot = True
        patience = SlotPatience(run.settings.source, run.settings.slot_timeout_s)
        slot = await create_slot(source, names, facts, run.settings.failover, patience)
    check_slot(slot, facts)
    if not record.slot_lsn:
        record = await note_slot(bucket, record, format_lsn(slot.confirmed_flush_lsn))
    return slot, record


async def _prepare_publication(
    run: Run, source: Source, bucket: StateBucket, watch: PublicationWatch, found: Publication | None, has_published: bool
) -> Publication:
    if run.is_publication_ready:
        return await watch.verify()
    prepared = await GroupPublication(run.settings, run.names, source, bucket, watch).prepare(found, has_published=has_published)
    run.is_publication_ready = True
    return prepared


async def find_until(text: str, source: Source) -> LSN:
    """The LSN that ``--until-lsn`` means now."""
    return await source.current_lsn() if text == "current" else parse_lsn(text)


class Session:
    """The tasks of a running stream."""

    def __init__(
        self,
        receiver: Receiver,
        publisher: Publisher,
        feedback: Feedback,
        recorder: Recorder,
        retention: Callable[[], Coroutine[Any, Any, None]],
        watch: PublicationWatch,
    ) -> None:
        self._receiver = receiver
        self._publisher = publisher
        self._feedback = feedback
        self._recorder = recorder
        self._retention = retention
        self._watch = watch

    def finish_at(self, until: LSN) -> None:
        """Makes ``stream`` end there, soon if the source is idle."""
        self._receiver.finish_at(until)
        with suppress(TransientError):  # a broken connection ends the session by itself
            self._feedback.send()

    async def stream(self, stop: asyncio.Event) -> None:
        """Returns after ``stop`` or at the run's ``until``, with everything published confirmed when that was possible within
        STOP_DEADLINE_S. Raises the error that ended the stream."""
        await run_until_first(
            [
                self._receive(),
                self._await_stop(stop),
                self._publisher.run(),
                self._feedback.run(),
                self._recorder.run(),
                self._retention(),
                self._watch.run(),
            ]
        )

    async def _receive(self) -> None:
        await self._receiver.run()
        await self._publisher.flush()
        await self._recorder.write()
        self._feedback.send()
        log.info("everything that was received is published and confirmed", sequence=self._publisher.end.sequence)

    async def _await_stop(self, stop: asyncio.Event) -> None:
        """Returns when ``_receive`` did not end in time after ``stop``."""
        await stop.wait()
        log.info("stopping")
        self._receiver.stop()
        await asyncio.sleep(STOP_DEADLINE_S)
        log.warning("stopped before everything was acknowledged; the next start publishes it again")
