"""The code of a Spark task for the Kafka sink: lines as values, each with its topic, its key and its headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    UPDATE,
    CopiedRows,
    DefinitionChange,
    MessageChanges,
    TableChanges,
    Transaction,
    Truncation,
)
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.position import format_lsn
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.sinks.kafka.outgoing_records import RecordGroup, RecordSection
from pgsluice.worker.sinks.kafka.record_keys import RecordKeys
from pgsluice.worker.sinks.kafka.topic_pattern import TopicPattern
from pgsluice.worker.sinks.lines.definition_fields import concerned_name
from pgsluice.worker.sinks.lines.json_lines import as_changes, format_timestamp
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding, LineShape
from pgsluice.worker.sinks.lines.line_output import receipt_bodies
from pgsluice.worker.sinks.sink import Partition

RECORD_OVERHEAD = 512
"""Bytes for a record's own fields and its headers, with a reserve."""

_OPERATIONS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}


class _LineKeys(NamedTuple):
    """The facts of a change's line, or two lines: if a row's key changed ``old_key`` is the previous one."""

    topic: str
    operation: str
    key: bytes | None = None
    old_key: bytes | None = None


class _Record(NamedTuple):
    topic: str
    operation: str
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """``most_bytes`` is what the brokers take as one record."""

    form: LineEncoding
    topics: TopicPattern
    keys: RecordKeys
    most_bytes: int
    tombstones: bool
    headers: bool

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        """Raises RejectedChanges for records that are too large; then nothing of the partition is yielded after the
        first."""
        return bodies((*_LineRecords(self, message).section(), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        """Like ``write``, for copied rows."""
        return bodies(self._copied_sections(copied))

    def _copied_sections(self, copied: Iterable[CopiedRows]) -> Iterator[tuple[RecordSection, list[Rejection], bool]]:
        track = 0
        for rows in copied:
            section, rejected = RecordSection(), list[Rejection]()
            group = section.group(self.copied_group(rows, track))
            for row, (line, key) in enumerate(zip(self.form.encode_copied(rows), self._copied_keys(rows), strict=True)):
                if self.is_too_large(line, key):
                    rejected.append(Rejection(copied_position(rows.sequence, rows.row_number(row)), self.too_large(len(line))))
                else:
                    section.add(group, row, key, line[:-1])
            yield section, rejected, not rows.more_follow
            track = track + 1 if rows.more_follow else 0

    def _copied_keys(self, rows: CopiedRows) -> Iterable[bytes | None]:
        return [None] if rows.restarts else self.keys.of_changes(as_changes(rows))[0]

    def copied_group(self, rows: CopiedRows, track: int) -> RecordGroup:
        topic = self.topics.topic(rows.table.schema, rows.table.name)
        operation = b"read"
        if rows.restarts:
            operation = b"restart" if self.form.tells_definitions else b"truncate"
        place = b"copy:%d:%d:" % (rows.sequence, track)
        if not self.headers:
            return RecordGroup(topic, b"", ())
        return RecordGroup(topic, place, (("pgsluice-operation", operation), ("pgsluice-snapshot", rows.snapshot.encode())))

    def is_too_large(self, value: bytes | None, key: bytes | None) -> bool:
        return len(value or b"") + len(key or b"") > self.most_bytes - RECORD_OVERHEAD

    def too_large(self, size: int) -> str:
        return f"its record of {size} bytes is larger than kafka-max-record-bytes ({self.most_bytes})"


def transaction_group(transaction: Transaction, topic: str, operation: str, *, headers: bool) -> RecordGroup:
    """Returns the common fields of one operation's records in a transaction, in that topic."""
    if not headers:
        return RecordGroup(topic, b"", ())
    lsn = format_lsn(transaction.commit_lsn).encode()
    told = (
        ("pgsluice-operation", operation.encode()),
        ("pgsluice-lsn", lsn),
        ("pgsluice-xid", b"%d" % transaction.xid),
        ("pgsluice-committed-at", format_timestamp(transaction.committed_at).encode()),
    )
    return RecordGroup(topic, lsn + b":", told)


def bodies(sections: Iterable[tuple[RecordSection, list[Rejection], bool]]) -> Iterator[bytes]:
    rejections: list[Rejection] = []

    def pieces() -> Iterator[tuple[list[bytes], bool]]:
        for section, rejected, is_whole in sections:
            rejections.extend(rejected)
            yield ([] if rejections else section.encode()), is_whole

    for body in receipt_bodies(pieces()):
        if rejections:
            break
        yield body
    if rejections:
        raise RejectedChanges(rejections)


@dataclass(slots=True)
class _LineRecords:
    """The records of one message."""

    writer: RecordWriter
    message: MessageChanges
    _section: RecordSection = field(default_factory=RecordSection)
    _groups: dict[tuple[str, str], int] = field(default_factory=dict)
    """Groups of the current transaction, by topic and operation."""

    def section(self) -> tuple[RecordSection, list[Rejection]]:
        told, lines = self._told(), iter(self.writer.form.encode(self.message))
        rejected: list[Rejection] = []
        for transaction in self.message.transactions:
            self._groups.clear()
            ordinal = transaction.first_ordinal - transaction.first_change
            for index in range(transaction.first_change, transaction.end_change):
                if not told[index]:
                    continue
                line = next(lines)
                records = self._records(told[index], line)
                if any(self.writer.is_too_large(record.value, record.key) for record in records):
                    rejected.append(Rejection(transaction.position(index), self.writer.too_large(len(line))))
                    continue
                for topic, operation, key, value in records:
                    self._section.add(self._group(transaction, topic, operation), ordinal + index, key, value)
        return self._section, rejected

    def _group(self, transaction: Transaction, topic: str, operation: str) -> int:
        if (topic, operation) not in self._groups:
            group = transaction_group(transaction, topic, operation, headers=self.writer.headers)
            self._groups[topic, operation] = self._section.group(group)
        return self._groups[topic, operation]

    def _told(self) -> list[list[_LineKeys]]:
        """Facts per change for its lines, in order; empty for a change without a line."""
        told: list[list[_LineKeys]] = [[] for _ in range(self.message.change_count)]
        topics, keys = self.writer.topics, self.writer.keys
        for part in self.message.parts:
            match part:
                case TableChanges(table=table):
                    topic = topics.topic(table.schema, table.name)
                    of_rows = zip(part.change_indexes, part.operations, *keys.of_changes(part), strict=True)
                    for index, operation, key, old_key in of_rows:
                        told[index].append(_LineKeys(topic, _OPERATIONS[operation], key, old_key))
                case Truncation():
                    tables = [topics.topic(table.schema, table.name) for table in part.tables]
                    told[part.change_index] += [_LineKeys(topic, "truncate") for topic in tables]
                case DefinitionChange():
                    if self.writer.form.tells_definitions:
                        told[part.change_index].append(_LineKeys(topics.topic(*concerned_name(part.definition)), "ddl"))
                case unreachable:
                    assert_never(unreachable)
        return told

    def _records(self, told: list[_LineKeys], line: bytes) -> list[_Record]:
        if len(told) == 1 and told[0].old_key is None:
            topic, operation, key, _ = told[0]
            records = [_Record(topic, operation, key, line[:-1])]
            if operation == "delete" and key is not None and self.writer.tombstones:
                records.append(_Record(topic, operation, key, None))
            return records
        return list(self._several(told, line.splitlines()))

    def _several(self, told: list[_LineKeys], pieces: list[bytes]) -> Iterator[_Record]:
        """Yields the records of a change that goes to several tables, or changes a key."""
        left = iter(pieces)
        for topic, operation, key, old_key in told:
            if old_key is not None and self.writer.form.shape is LineShape.DEBEZIUM:  # written as a deletion and an insertion
                yield _Record(topic, "delete", old_key, next(left))
                operation = "insert"
            if self.writer.tombstones and old_key is not None:
                yield _Record(topic, "delete", old_key, None)
            yield _Record(topic, operation, key, next(left))
            if self.writer.tombstones and operation == "delete" and key is not None:
                yield _Record(topic, operation, key, None)
