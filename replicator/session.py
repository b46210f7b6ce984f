"""One session: from the checks to the end of the stream. This module names the steps, others know how.

Everything a session knows it reads again from source and broker, so a session that failed is repaired by the next one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from nats.aio.client import Client

from pgsluice.replicator.assembler import Assembler
from pgsluice.replicator.definitions.consequences import Consequences
from pgsluice.replicator.definitions.source_definitions import SourceDefinitions
from pgsluice.replicator.definitions.store import HistoryStore
from pgsluice.replicator.definitions.tracking import token_now, track_definitions
from pgsluice.replicator.group_start import Run, note_timeline, prepare_group
from pgsluice.replicator.membership.live_membership import LiveMembership
from pgsluice.replicator.membership.order_execution import OrderExecution
from pgsluice.replicator.membership.publication_watch import PublicationWatch
from pgsluice.replicator.membership.table_changes import MembershipChanges
from pgsluice.replicator.membership.wanted_tables import load_wishes
from pgsluice.replicator.preflight.start import check_start
from pgsluice.replicator.progress import Progress, Recorder
from pgsluice.replicator.publisher import Publisher
from pgsluice.replicator.receiver import Feedback, StreamReceiver, status_interval_s
from pgsluice.replicator.resume import ResumePoint, find_resume_point
from pgsluice.replicator.retention import run_retention
from pgsluice.replicator.source.connection import WALSENDER_TIMEOUT_MS
from pgsluice.replicator.source.relation_catalog import RelationCatalog
from pgsluice.replicator.source.slot import ReplicationSlot
from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.replicator.source.walsender import WalSender
from pgsluice.replicator.start_checks import check_agreement, check_history
from pgsluice.replicator.tasks import lasting, run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.published_tables import SeenTables
from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.stream_settings import StreamCompression, StreamSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.position import LSN, format_lsn, parse_lsn

STOP_DEADLINE_S = 20.0

log = telemetry.logger(__name__)


@asynccontextmanager
async def open_session(run: Run, client: Client) -> AsyncIterator[ReplicationSession]:
    """Checks everything, makes what is missing and starts the replication stream; closes both source connections at the
    end.

    Raises UsageError or TerminalError when it would not be safe or not possible to continue, TransientError when a
    later attempt may succeed.
    """
    source = await Source.connect(run.settings.source)
    try:
        facts = await _facts(run, client, source)
        timeout_ms = min(facts.wal_sender_timeout_ms or WALSENDER_TIMEOUT_MS, WALSENDER_TIMEOUT_MS)
        walsender = await WalSender.connect(run.settings.source, run.names.slot, timeout_ms)
        try:
            yield await _prepare(run, client, source, facts, walsender)
        finally:
            await walsender.close()
    finally:
        await source.close()


async def _facts(run: Run, client: Client, source: Source) -> SourceFacts:
    """Returns checked facts: all that a start depends on in the first session, the server alone in later ones, and
    after a copy's preparation, which has checked the rest."""
    if run.is_publication_ready or run.copy is not None:
        return await source.check()
    return await check_start(run.settings, run.names, source, StateBucket(client, run.names))


async def _prepare(run: Run, client: Client, source: Source, facts: SourceFacts, walsender: WalSender) -> ReplicationSession:
    settings, names = run.settings, run.names
    stream, bucket = ChangeStream(client, names), StateBucket(client, names)
    state = await stream.ensure(settings.stream)
    await bucket.ensure(settings.stream)
    wishes = await load_wishes(settings, bucket, tidies=not run.is_publication_ready)
    watch = PublicationWatch(wishes, names, source, bucket)
    slot, record = await prepare_group(run, source, facts, await walsender.identify(), bucket, watch)

    id_prefix = f"{record.system_id}/{names.slot}/"
    point = await find_resume_point(stream, state, id_prefix, slot.confirmed_flush_lsn)
    recorded = await bucket.read(REPLICATOR_KEY, ReplicatorRecord)
    check_agreement(stream.name, state, point, recorded.value if recorded else None, slot, parse_lsn(record.slot_lsn))
    timeline = await check_history(walsender, stream.name, point, slot, record.timeline)
    await note_timeline(bucket, record, timeline)
    if run.until is None and settings.until_lsn and not run.is_copying:
        run.until = await find_until(settings.until_lsn, source)

    progress = Progress(slot.confirmed_flush_lsn, point.end.sequence)
    compress = _compression(settings.stream)
    acknowledged, patience = progress.acknowledged, settings.retry.nats
    publisher = Publisher(client, stream, id_prefix, point.end, acknowledged, run.pulse, run.counts, compress, patience)
    look = asyncio.Event()
    definitions = await _definitions(run, source, bucket, watch, facts.user, look, slot)
    asks = definitions.are_captured or (point.published.counts_definitions and not point.published.settled)
    watch.followed.on_stranger = look.set
    if watch.is_altered or watch.attached:
        look.set()
    assembler = Assembler(point.published, counts_definitions=asks, followed=watch.followed)
    receiver = StreamReceiver(
        walsender, definitions, assembler, publisher, progress, run.counts, run.pulse, run.until, watch.admit
    )
    feedback = Feedback(walsender, progress, receiver, status_interval_s(walsender.timeout_ms))
    recorder = Recorder(bucket, state.created, progress, run.counts)
    retention = functools.partial(run_retention, stream, SnapshotStream(client, names), bucket, settings.stream.retention_s)
    await recorder.write()
    run.counts.sessions += 1
    wanted = definitions.wanted if asks else None
    await walsender.start(names.slot, names.publication, slot.confirmed_flush_lsn, settings.origin, wanted)
    run.walsender = walsender.process
    _log_start(slot, stream, point)
    changes = MembershipChanges(run, bucket, watch, facts.user if definitions.are_captured else "")
    execution = OrderExecution(run, bucket, stream, watch, changes)
    live = LiveMembership(run, bucket, source, stream, watch, changes, execution, look)
    return ReplicationSession(
        receiver, publisher, feedback, recorder, {"retention": retention, "the watch over tables": live.run}
    )


async def _definitions(
    run: Run, source: Source, bucket: StateBucket, watch: PublicationWatch, role: str, look: asyncio.Event, slot: ReplicationSlot
) -> SourceDefinitions:
    names, store, token = run.names, HistoryStore(bucket), ""
    histories = await store.load()
    if run.settings.track_ddl:
        described = [oid for oid, history in histories.items() if history.is_whole]
        token = await track_definitions(source, names, watch.wishes.patterns, role, described, run.settings.retry.source)
    copy = run.copy if run.settings.recopy_altered else None
    consequences = Consequences(run.settings.source, copy, lambda: watch.membership.oids, look)
    catalog, published = RelationCatalog(source, names, slot.catalog_xmin), await store.load_log()
    await catalog.begin()
    seen = await SeenTables.load(bucket)
    return SourceDefinitions(
        catalog,
        store,
        histories,
        published,
        names.definitions_prefix,
        token,
        consequences,
        seen,
        read_token=functools.partial(token_now, run.settings.source, names),
    )


def _compression(settings: StreamSettings) -> Callable[[bytes], bytes | None] | None:
    """Returns the compression of bodies of changes; None without one by the replicator."""
    if settings.compression != StreamCompression.ZSTD:
        return None
    from pgsluice.shared.wire.compressed_body import BodyCompressor  # most replicators need no such library

    return BodyCompressor().compress


def _log_start(slot: ReplicationSlot, stream: ChangeStream, point: ResumePoint) -> None:
    log.info(
        "replicating",
        slot=slot.name,
        stream=stream.name,
        start_lsn=format_lsn(slot.confirmed_flush_lsn),
        published=point.published.last or "nothing",
        sequence=point.end.sequence,
    )


async def find_until(text: str, source: Source) -> LSN:
    """Returns the LSN that ``--until-lsn`` means now."""
    return await source.current_lsn() if text == "current" else parse_lsn(text)


class ReplicationSession:
    """The tasks of a running stream. ``beside`` are tasks, by name, that run until the session ends."""

    def __init__(
        self,
        receiver: StreamReceiver,
        publisher: Publisher,
        feedback: Feedback,
        recorder: Recorder,
        beside: Mapping[str, Callable[[], Coroutine[Any, Any, None]]],
    ) -> None:
        self._receiver = receiver
        self._publisher = publisher
        self._feedback = feedback
        self._recorder = recorder
        self._beside = beside

    def finish_at(self, until: LSN) -> None:
        """Makes ``stream`` end there, soon if the source is idle."""
        self._receiver.finish_at(until)
        with suppress(TransientError):  # a broken connection ends the session anyway
            self._feedback.send()

    async def stream(self, stop: asyncio.Event) -> None:
        """Returns after ``stop`` or at the run's ``until``, with everything published confirmed when that was possible within
        STOP_DEADLINE_S. Raises the error that ended the stream."""
        await run_until_first(
            [
                self._receive(),
                self._await_stop(stop),
                lasting("publishing", self._publisher.run()),
                lasting("feedback to the source", self._feedback.run()),
                lasting("the record of progress", self._recorder.run()),
                *(lasting(name, run()) for name, run in self._beside.items()),
            ]
        )

    async def _receive(self) -> None:
        await self._receiver.run()
        await self._publisher.flush()
        await self._recorder.write()
        await self._feedback.finish()
        log.info("everything that was received is published and confirmed", sequence=self._publisher.end.sequence)

    async def _await_stop(self, stop: asyncio.Event) -> None:
        """Returns when ``_receive`` did not end in time after ``stop``."""
        await stop.wait()
        log.info("stopping")
        self._receiver.stop()
        await asyncio.sleep(STOP_DEADLINE_S)
        log.warning("stopped before everything was acknowledged; the next start publishes it again")
