"""Reads a range of one partition and makes a message body of it, which decodes as a replicator's does.

Each record has its own commit LSN in the index: the one of the message before, and then its place in the range. Records
that follow each other and come from one source transaction share the first one's, as one transaction, with the source's
transaction id and commit time. A last transaction without changes ends at the message's anchor, whatever the range
holds. A range without a record (an aborted transaction, markers) holds a TRUNCATE of no table, because a message
without changes would not count as read.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from pgsluice.shared.errors import WireError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.shared.pgoutput import encode_message
from pgsluice.shared.pgoutput.messages import Begin, Commit, Truncate
from pgsluice.shared.wire.kafka_range import IndexEntry, KafkaRange, TopicEnds
from pgsluice.shared.wire.kafka_record import ChangeRecord, decode_record
from pgsluice.shared.wire.message import Descriptor, MessageHeaders, encode_body
from pgsluice.shared.wire.position import LSN, Anchor
from pgsluice.shared.wire.table import Table
from pgsluice.worker.kafka_source.record_fetcher import RecordFetcher, Records
from pgsluice.worker.kafka_source.topic_ends import SourceTopics, check_same_topic

NO_CHANGE = encode_message(Truncate(cascade=False, restart_identity=False, relation_oids=()))


class _Described(NamedTuple):
    """A topic's id and number of partitions, and when that was asked."""

    asked_at: float
    found: tuple[str, int]


class RangeReader:
    """Use in a single thread. Raises TransientError when the brokers do not answer."""

    def __init__(self, cluster: KafkaSettings) -> None:
        self._topics = SourceTopics(cluster)
        self._fetcher = RecordFetcher(cluster)
        self._described: dict[str, _Described] = {}

    def body(self, headers: MessageHeaders, named: bytes) -> bytes:
        """Returns a ``BodyElsewhere``. Raises HistoryError when the records are gone, or the topic is another one."""
        entry = IndexEntry.decode(named)
        if headers.anchor is None or headers.after is None:
            raise WireError("a message that names records in Kafka has no anchor")
        fetched = self._fetcher.fetch(entry.range)
        self._check_topic(entry, fetched.arrived_at)
        return body_of_records(fetched.records, entry.range, headers.after, headers.anchor)

    def _check_topic(self, entry: IndexEntry, arrived_at: float) -> None:
        """Asks after the records arrived: an id never comes back, so they are that topic's."""
        at = entry.range
        described = self._described.get(at.topic)
        if described is None or described.asked_at <= arrived_at:
            now = time.monotonic()
            described = self._described[at.topic] = _Described(now, self._topics.describe(at.topic))
        check_same_topic(at.topic, TopicEnds(at.topic_id, entry.ends[at.topic].offsets), described.found)


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
    """Returns the record's transaction in the index. Copied rows have none: they have the time at which they were
    indexed."""
    begin = record.begin
    return Begin(lsn, begin.committed_at if begin.xid else anchor.committed_at, begin.xid)


def _commit_of(begin: Begin) -> bytes:
    return encode_message(Commit(0, begin.final_lsn, begin.final_lsn, begin.committed_at))


_readers: dict[KafkaSettings, RangeReader] = {}


def process_reader(cluster: KafkaSettings) -> RangeReader:
    """Returns this process's reader, made at the first call and kept as long as the process."""
    reader = _readers.get(cluster)
    if reader is None:
        reader = _readers[cluster] = RangeReader(cluster)
    return reader
