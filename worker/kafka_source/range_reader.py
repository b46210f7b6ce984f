"""Reads a range of one partition and makes a message body of it, which decodes as a replicator's does.

Each record has a commit LSN of its own in the index: the one of the message before, and then its place in the range. Records that
follow each other and come from one source transaction share the first one's, as one transaction, with the source's transaction
id and commit time. A last transaction without changes ends at the message's anchor, whatever the range holds. A range without a
record (a transaction that was given up, markers) holds a TRUNCATE of no table, because a message without changes would not count
as read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pgsluice.shared.errors import Cause, HistoryError, PgsluiceError, TransientError, WireError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.shared.pgoutput import encode_message
from pgsluice.shared.pgoutput.messages import Begin, Commit, Truncate
from pgsluice.shared.wire.kafka_range import IndexEntry, KafkaRange, TopicEnds
from pgsluice.shared.wire.kafka_record import ChangeRecord, decode_record
from pgsluice.shared.wire.message import Descriptor, MessageHeaders, encode_body
from pgsluice.shared.wire.position import LSN, Anchor
from pgsluice.shared.wire.table import Table
from pgsluice.worker.kafka_source.topic_ends import SourceTopics, check_same_topic, error_of
from pgsluice.worker.sinks.kafka.kafka_client import Complaints, client_settings

READ_DEADLINE_S = 60.0
"""How long nothing may come."""
POLL_S = 0.5
AT_ONCE = 500
NO_CHANGE = encode_message(Truncate(cascade=False, restart_identity=False, relation_oids=()))

Records = Sequence[tuple[int, bytes]]
"""Offsets and values."""


class RangeReader:
    """For one thread. Raises TransientError when the brokers do not answer."""

    def __init__(self, cluster: KafkaSettings) -> None:
        self._complaints = Complaints()
        self._topics = SourceTopics(cluster)
        settings = client_settings(cluster, self._complaints) | {
            "group.id": "pgsluice",  # none is joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
        }
        with self._complaints.translated():
            self._consumer = Consumer(settings)
        self._place: tuple[str, int, int] | None = None
        """Topic, partition and the offset that the consumer would give next."""
        self._ahead: deque[Message] = deque()

    def body(self, headers: MessageHeaders, named: bytes) -> bytes:
        """A ``BodyElsewhere``. Raises HistoryError when the records are gone, or the topic is another one."""
        entry = IndexEntry.decode(named)
        if headers.anchor is None or headers.after is None:
            raise WireError("a message that names records in Kafka has no anchor")
        records = self._records(entry.range)
        self._check_topic(entry)
        return body_of_records(records, entry.range, headers.after, headers.anchor)

    def _check_topic(self, entry: IndexEntry) -> None:
        """After the records were read: an id never comes back, so they are that topic's."""
        at = entry.range
        found = self._topics.described([at.topic])[at.topic]
        check_same_topic(at.topic, TopicEnds(at.topic_id, entry.ends[at.topic].offsets), found)

    def _records(self, at: KafkaRange) -> Records:
        """Those that are committed and have a value."""
        with self._complaints.translated(at.topic):
            if self._place != (at.topic, at.partition, at.first):
                self._ahead.clear()
                self._consumer.assign([TopicPartition(at.topic, at.partition, at.first)])
            self._place = None  # until the whole range is read
            records = list(self._until_end(at))
            self._complaints.forget()
            self._place = (at.topic, at.partition, at.end)
        return records

    def _until_end(self, at: KafkaRange) -> Iterator[tuple[int, bytes]]:
        deadline = time.monotonic() + READ_DEADLINE_S
        while True:
            while self._ahead:
                message = self._ahead[0]
                error, offset = message.error(), message.offset()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise self._failure(error, at)
                if offset >= at.end:
                    if error is not None:
                        self._ahead.popleft()
                    return
                self._ahead.popleft()
                if error is None and message.value() is not None:
                    yield offset, message.value()
                if error is None and offset == at.end - 1:
                    return
            if time.monotonic() > deadline:
                raise self._complaints.cause() or TransientError(
                    f"records of topic {at.topic}, partition {at.partition}, do not arrive",
                    "check that the brokers run and can be reached",
                    Cause.SOURCE,
                )
            came = self._consumer.consume(AT_ONCE, POLL_S)
            if came:
                deadline = time.monotonic() + READ_DEADLINE_S
            self._ahead.extend(came)

    def _failure(self, error: KafkaError, at: KafkaRange) -> PgsluiceError:
        self._ahead.clear()
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return HistoryError(
                f"records {at.first} to {at.end - 1} of topic {at.topic}, partition {at.partition}, are gone, and were not all "
                "applied",
                "raise the topic's retention.ms above the time that this worker may be away, and begin a new group with an "
                "empty target",
            )
        return error_of(self._complaints, error, at.topic)


def body_of_records(records: Records, at: KafkaRange, after: Anchor, anchor: Anchor) -> bytes:
    """``after`` and ``anchor`` are those of the message. Raises WireError when one is not of the format pgsluice."""
    tables: dict[bytes, Table] = {}
    related: dict[int, bytes] = {}
    frames: list[bytes] = []
    base = after.position.commit_lsn + 1 - at.first
    open_since: Begin | None = None
    begun = Begin(anchor.position.commit_lsn, anchor.committed_at, anchor.xid)
    for offset, value in records:
        record = decode_record(value)
        if record.begin != open_since:
            if open_since is not None:
                frames.append(_commit_of(begun))
            begun, open_since = _placed(record, LSN(base + offset), anchor), record.begin
            frames.append(encode_message(begun))
        tables[record.relation] = record.table
        if related.get(record.table.oid) != record.relation:
            related[record.table.oid] = record.relation
            frames.append(record.relation)
        frames.append(record.frame)
    if open_since is not None:
        frames.append(_commit_of(begun))
    last = Begin(anchor.position.commit_lsn, anchor.committed_at, anchor.xid)
    frames += [encode_message(last), *([] if records else [NO_CHANGE]), _commit_of(last)]
    return encode_body(Descriptor(tuple(tables.values())).encode(), frames)


def _placed(record: ChangeRecord, lsn: LSN, anchor: Anchor) -> Begin:
    """The record's transaction in the index. Copied rows have none: they have the time at which they were indexed."""
    begin = record.begin
    return Begin(lsn, begin.committed_at if begin.xid else anchor.committed_at, begin.xid)


def _commit_of(begin: Begin) -> bytes:
    return encode_message(Commit(0, begin.final_lsn, begin.final_lsn, begin.committed_at))


_readers: dict[KafkaSettings, RangeReader] = {}


def process_reader(cluster: KafkaSettings) -> RangeReader:
    """This process's, made at the first call and kept as long as the process."""
    reader = _readers.get(cluster)
    if reader is None:
        reader = _readers[cluster] = RangeReader(cluster)
    return reader
