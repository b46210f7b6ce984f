"""The index of records in Kafka: the change stream of a group without a replicator (``shared.wire.kafka_range``).

Who adds a range takes the newest message of the stream, whose ``ends`` hold the indexed offsets, and names it as the
one that must come before. So the stream is one chain whichever process adds to it, and needs no owner. The ids of its
messages are never used again. Messages that every worker has applied are removed as from any change stream
(``shared.broker.change_retention``), but never the newest message.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from nats.aio.client import Client

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.change_retention import INTERVAL_S, ChangeRetention
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord, publication_of_worker
from pgsluice.shared.broker.streams import ChangeStream, StoredMessage
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import HistoryError, TerminalError, TransientError
from pgsluice.shared.kafka.kafka_settings import KafkaSourceSettings
from pgsluice.shared.process.retrying import RetryNews
from pgsluice.shared.wire.kafka_range import IndexEntry, KafkaRange, TopicEnds
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, NO_ANCHOR, POSTGRES_EPOCH, Anchor, Position
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.kafka_source.record_sizes import RecordSizes
from pgsluice.worker.kafka_source.topic_ends import SourceTopics, check_goes_on, check_same_topic, missing_error
from pgsluice.worker.positions.target import CURRENT
from pgsluice.worker.sinks.kafka.broker_access import check_cluster
from pgsluice.worker.stopping import Retrying, WorkerStopping

RANGE_RECORDS = 1000
RANGE_BYTES = 4 * 1024 * 1024
"""Limit of each range, without its last record: a task holds a range as a whole."""
LOOK_INTERVAL_S = 0.2
RANGE_COSTS_S = 0.01
"""Approximate cost of a range for a task, whatever it holds."""
LONGEST_INTERVAL_S = 5.0
LONGEST_LOOK_S = 1.0
"""Time after which a pass adds no more ranges: workers start on the ones added."""
END_DEADLINE_S = 3.0

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class IndexEnd:
    """The newest message, which the next one continues."""

    sequence: int = 0
    total_bytes: int = 0
    anchor: Anchor = NO_ANCHOR
    cluster: str = ""
    ends: Mapping[str, TopicEnds] | None = None

    @classmethod
    def of(cls, last: StoredMessage | None) -> IndexEnd:
        """Raises WireError when the message is not of an index."""
        if last is None:
            return cls()
        headers, entry = MessageHeaders.decode(last.headers), IndexEntry.decode(last.data)
        return cls(last.sequence, headers.total_bytes, headers.anchor or NO_ANCHOR, entry.range.cluster, entry.ends)

    def followed_by(self, at: KafkaRange, ends: Mapping[str, TopicEnds], size: int) -> tuple[MessageHeaders, IndexEnd]:
        """Returns the headers of the message that names ``at``, whose records have ``size`` bytes, and the end after
        it."""
        lsn = self.anchor.position.commit_lsn
        now = (datetime.now(UTC) - POSTGRES_EPOCH).total_seconds()
        anchor = Anchor(Position(LSN(lsn + at.records + 1), 1), 0, max(int(now * 1e6), self.anchor.committed_at + 1))
        headers = MessageHeaders(
            first=Position(LSN(lsn + 1), 1),
            last=anchor.position,
            flushed=anchor.position.commit_lsn,
            settled=self.sequence + 1,
            total_bytes=self.total_bytes + size,
            anchor=anchor,
            after=self.anchor,
            size=size,
            in_kafka=True,
        )
        return headers, IndexEnd(self.sequence + 1, headers.total_bytes, anchor, at.cluster, ends)


class RangeIndex:
    """Blocking calls over the driver's connection to NATS, of one thread at a time. They raise TransientError when NATS or Kafka
    does not answer."""

    def __init__(self, loop: EventLoopThread, client: Client, names: GroupNames, kafka: KafkaSourceSettings) -> None:
        self._loop = loop
        self._names = names
        self._kafka = kafka
        self._stream = ChangeStream(client, names)
        self._bucket = StateBucket(client, names)
        self._retention = ChangeRetention(self._stream, self._bucket, kafka.stream.retention_s)
        self._topics: SourceTopics | None = None
        self._sizes: RecordSizes | None = None
        self._cluster = ""
        self._end: IndexEnd | None = None
        self._begun: dict[tuple[str, int], tuple[int, ...]] = {}
        self._awaited: Sequence[str] = ()
        """Topics that did not exist at the last check."""
        self.is_behind = False
        """True if the last pass left ranges for the next."""

    def begin(self, worker: str, settings: StreamSettings) -> bool:
        """Creates the group's stream and its bucket, and makes a first pass. Raises TerminalError when the group is
        another publisher's, or the topics are not the ones read before."""
        check_cluster(self._kafka.cluster)
        self._topics = SourceTopics(self._kafka.cluster)
        self._sizes = RecordSizes(self._kafka.cluster)
        self._cluster = self._topics.cluster_id()
        for topic in self._topics.described(self._kafka.topics):
            self._topics.check_keeps_all(topic)
        self._loop.run(self._make(worker, settings))
        self.advance()
        return True

    async def _make(self, worker: str, settings: StreamSettings) -> None:
        if await self._bucket.exists():
            await self._check_group()
        await self._stream.ensure(settings)
        await self._bucket.ensure(settings)
        record = GroupRecord(
            group=self._names.group,
            system_id=self._cluster,
            timeline=0,
            database="kafka",
            publication=publication_of_worker(f"{self._names.group}/{worker}"),
            publication_oid=0,
            slot=self._names.slot,
            slot_lsn="",
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        await self._bucket.create(GROUP_KEY, record)  # unless it exists
        await self._check_group()

    async def _check_group(self) -> None:
        found = await self._bucket.read(GROUP_KEY, GroupRecord)
        if found is not None and found.value.system_id != self._cluster:
            raise TerminalError(
                f"group '{self._names.group}' does not come from these topics of Kafka",
                "use a separate group for data from Kafka; a cluster that was created again needs a new group, too",
            )

    def advance(self) -> int:
        """Adds ranges of Kafka that the index lacks, as far as one pass gets; returns the number of messages."""
        assert self._sizes is not None
        self.is_behind = False
        if self._end is None:
            self._end = self._loop.run(self._newest())
        try:
            return self._add(self._end, self._sizes)
        finally:
            self._sizes.rest()

    def _add(self, end: IndexEnd, sizes: RecordSizes) -> int:
        added, ends_at = 0, time.monotonic() + LONGEST_LOOK_S
        for at, ends, size in self._new_ranges(end.ends or {}, sizes):
            headers, behind = end.followed_by(at, ends, size)
            if not self._loop.run(self._publish(headers, IndexEntry(at, ends), end.sequence)):
                self._end = None  # another process was faster, or it is not known: the end is read again
                return added
            self._end = end = behind
            added += 1
            if time.monotonic() >= ends_at:
                self.is_behind = True
                break
        return added

    def trim(self) -> None:
        """Removes what all workers have applied, once it is old enough."""
        self._loop.run(self._retention.purge_and_warn())

    async def _newest(self) -> IndexEnd:
        last = await self._stream.last_message()
        if last is None and (state := await self._stream.state()) is not None and state.last_sequence:
            raise HistoryError(
                f"stream {self._stream.name} is empty, and before it contained the positions in Kafka",
                "restore it, or drop the group and start over with an empty target",
            )
        return IndexEnd.of(last)

    def _new_ranges(
        self, known: Mapping[str, TopicEnds], sizes: RecordSizes
    ) -> Iterator[tuple[KafkaRange, Mapping[str, TopicEnds], int]]:
        """Yields new ranges in order, each with the ends after it, and with its bytes."""
        assert self._topics is not None
        ends = dict(known)
        described = self._topics.described(self._kafka.topics)
        self._check_missing([topic for topic in self._kafka.topics if topic not in described], known)
        for topic, found in described.items():
            topic_id, partitions = found
            if topic not in ends:
                ends[topic] = TopicEnds(topic_id, self._first_offsets(topic, topic_id, partitions))
            check_same_topic(topic, ends[topic], found)
            stable = self._topics.stable_offsets(topic, partitions)
            check_goes_on(topic, ends[topic], stable)
            for partition, end in enumerate(stable):
                while (first := ends[topic].offsets[partition]) < end:
                    at = KafkaRange(self._cluster, topic, topic_id, partition, first, min(end, first + RANGE_RECORDS))
                    measured = sizes.measure(at, RANGE_BYTES)
                    at = replace(at, end=measured.end)
                    offsets = ends[topic].offsets
                    ends[topic] = replace(ends[topic], offsets=(*offsets[:partition], at.end, *offsets[partition + 1 :]))
                    yield at, dict(ends), measured.size

    def _check_missing(self, missing: Sequence[str], known: Collection[str]) -> None:
        """Checks missing topics: one that was never read may come with the first row of its table. Raises TerminalError
        for another one."""
        for topic in missing:
            if topic in known:
                raise missing_error(topic)
        if missing and missing != self._awaited:
            log.info("topics are not there yet; they are read from the first record on when they come", topics=",".join(missing))
        self._awaited = missing

    def _first_offsets(self, topic: str, topic_id: str, partitions: int) -> tuple[int, ...]:
        """Returns the offsets at the first check of a topic that is not indexed yet: a loss after that is noticed."""
        assert self._topics is not None
        offsets = self._begun.get((topic_id, partitions))
        if offsets is None:
            self._topics.check_keeps_all(topic)
            offsets = self._begun[topic_id, partitions] = self._topics.first_offsets(topic, partitions)
            if any(offsets):
                log.warning("a topic has lost its oldest records: their changes are missing at the sink", topic=topic)
        return offsets

    async def _publish(self, headers: MessageHeaders, entry: IndexEntry, after: int) -> bool:
        """Returns False when another message is in its place. Raises TransientError when it is not known whether it was
        stored: the next pass finds out."""
        message_id = f"{self._cluster}/{self._names.slot}/{entry.range}#{uuid.uuid4().hex[:12]}"
        try:
            return await self._stream.append(entry.encode(), headers.encode(), message_id, after)
        except TransientError:
            self._end = None
            raise


def begun_index(
    loop: EventLoopThread, client: Client, settings: WorkerSettings, kafka: KafkaSourceSettings, stopping: WorkerStopping
) -> RangeIndex:
    """Returns the index of a starting worker. Waits until Kafka and the stream are reached; for a worker that ends at
    the current end, until all of that is in. Raises as ``WorkerStopping.check`` when that comes first."""
    index = RangeIndex(loop, client, GroupNames(settings.group), kafka)
    opening = Retrying("Kafka, or the group's stream, cannot be reached, trying again", settings.retry.source)
    stopping.wait_for(lambda: index.begin(settings.name, kafka.stream), opening)
    while index.is_behind and settings.until_sequence == CURRENT:
        stopping.wait_for(index.advance, opening)
    return index


def look_interval_s(added: int) -> float:
    """Returns the seconds until the next pass. The more ranges this one ``added``, the later that is, and the more it
    finds in each partition: so a worker keeps up with many of them."""
    return min(max(LOOK_INTERVAL_S, added * RANGE_COSTS_S), LONGEST_INTERVAL_S)


class IndexThread:
    """Adds to the index and trims it until it is stopped. ``ring`` is called when something was added, ``end_with`` with what
    ends it."""

    def __init__(
        self,
        index: RangeIndex,
        ring: Callable[[], None],
        end_with: Callable[[BaseException], None],
        trim_interval_s: float = INTERVAL_S,
    ) -> None:
        self._index = index
        self._ring = ring
        self._end_with = end_with
        self._trim_interval_s = trim_interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-index", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """A question that no broker answers is not waited for: what is added or not when the process ends is whole."""
        self._stopped.set()
        self._thread.join(END_DEADLINE_S)

    def _run(self) -> None:
        news, trimmed_at, added = RetryNews(), time.monotonic(), 0
        while not self._stopped.wait(0.0 if self._index.is_behind else look_interval_s(added)):
            try:
                added = self._index.advance()
                if added:
                    self._ring()
                if time.monotonic() - trimmed_at >= self._trim_interval_s:
                    trimmed_at = time.monotonic()
                    self._index.trim()
            except TransientError as error:
                if news.is_due(error):
                    log.warning("the index of Kafka's records cannot continue, trying again", reason=str(error))
            except BaseException as error:  # noqa: BLE001  the worker ends with it
                if not self._stopped.is_set():
                    self._end_with(error)
                return
