"""The code of a Spark task for the Kafka sink in the format pgsluice: each change as a record that a worker can read again.

``shared.wire.kafka_record`` is the format. Where the record's key is made of the row's, an update that changes it
becomes a Delete of the old key and an Insert with the new one, because they may lie in two partitions, and nothing
orders these. An Insert needs the whole row. So a large value that such an update did not send is taken from the old
row, if the source sent that (REPLICA IDENTITY FULL); else the update is a dead letter.

A TRUNCATE, and a table that is copied again, affect all rows. If these lie in several partitions the record is a
*barrier*: the driver refuses it for a topic with more than one (``record_producer``). Definitions are omitted: the
records after them have a table of that definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from pgsluice.shared.pgoutput import encode_message
from pgsluice.shared.pgoutput.messages import OLD_ROW, Begin, Truncate
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
from pgsluice.shared.rows.row_frames import own_table, relation_frame, row_frames
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.kafka_record import NO_TRANSACTION, encode_record
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.kafka.outgoing_records import RecordGroup, RecordSection
from pgsluice.worker.sinks.kafka.writer import RecordWriter, bodies, transaction_group
from pgsluice.worker.sinks.lines.json_lines import as_changes
from pgsluice.worker.sinks.sink import Partition

_OPERATIONS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
_INCOMPLETE = (
    "its key changed and a large value was not sent, so no record can hold the row: give the table REPLICA IDENTITY FULL at the "
    "source, or keep a table in one partition with kafka-key: {table}"
)


class _RecordFacts(NamedTuple):
    """One record of a change. Without a ``frame`` it is a tombstone."""

    table: Table
    operation: str
    key: bytes | None
    frame: bytes | None


@dataclass(frozen=True, slots=True)
class ChangeRecordWriter:
    """``lines`` determines topics, keys, headers and sizes of records."""

    lines: RecordWriter

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        """Raises RejectedChanges as ``RecordWriter.write``."""
        return bodies((*_ChangeRecords(self.lines, message).section(), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        """Like ``write``, for copied rows."""
        return bodies(self._copied_sections(copied))

    def _copied_sections(self, copied: Iterable[CopiedRows]) -> Iterator[tuple[RecordSection, list[Rejection], bool]]:
        track = 0
        for rows in copied:
            section, rejected = RecordSection(), list[Rejection]()
            group = section.group(replace(self.lines.copied_group(rows, track), is_barrier=self._is_barrier(rows)))
            table = own_table(rows.table)
            for row, (key, frame) in enumerate(self._copied_frames(rows, table)):
                value = encode_record(table, relation_frame(table), NO_TRANSACTION, frame)
                if self.lines.is_too_large(value, key):
                    place = copied_position(rows.sequence, rows.row_number(row))
                    rejected.append(Rejection(place, self.lines.too_large(len(value))))
                else:
                    section.add(group, row, key, value)
            yield section, rejected, not rows.more_follow
            track = track + 1 if rows.more_follow else 0

    def _is_barrier(self, rows: CopiedRows) -> bool:
        return rows.restarts and self.lines.keys.of_table(rows.table) is None

    def _copied_frames(self, rows: CopiedRows, table: Table) -> Iterator[tuple[bytes | None, bytes]]:
        if rows.restarts:
            return iter([(self.lines.keys.of_table(table), _truncation(table, cascade=False, restart_identity=False))])
        changes = as_changes(rows)
        return zip(self.lines.keys.of_changes(changes)[0], row_frames(changes, table.oid), strict=True)


@dataclass(slots=True)
class _ChangeRecords:
    """The records of one message."""

    lines: RecordWriter
    message: MessageChanges
    _section: RecordSection = field(default_factory=RecordSection)
    _rejected: list[Rejection] = field(default_factory=list)
    _groups: dict[tuple[str, str], int] = field(default_factory=dict)
    """Groups of the current transaction, by topic and operation."""
    _incomplete: set[int] = field(default_factory=set)
    """Changes of which no record can be made."""

    def section(self) -> tuple[RecordSection, list[Rejection]]:
        told = self._told()
        for transaction in self.message.transactions:
            self._groups.clear()
            begin = Begin(LSN(transaction.commit_lsn), transaction.committed_at, transaction.xid)
            for index in range(transaction.first_change, transaction.end_change):
                if index in self._incomplete:
                    self._rejected.append(Rejection(transaction.position(index), _INCOMPLETE))
                elif told[index]:
                    self._add(transaction, begin, index, told[index])
        return self._section, self._rejected

    def _add(self, transaction: Transaction, begin: Begin, index: int, told: list[_RecordFacts]) -> None:
        values = [
            None if each.frame is None else encode_record(each.table, relation_frame(each.table), begin, each.frame)
            for each in told
        ]
        for each, value in zip(told, values, strict=True):
            if self.lines.is_too_large(value, each.key):
                self._rejected.append(Rejection(transaction.position(index), self.lines.too_large(len(value or b""))))
                return
        ordinal = transaction.first_ordinal - transaction.first_change + index
        for each, value in zip(told, values, strict=True):
            self._section.add(self._group(transaction, each), ordinal, each.key, value)

    def _group(self, transaction: Transaction, told: _RecordFacts) -> int:
        topic = self.lines.topics.topic(told.table.schema, told.table.name)
        number = self._groups.get((topic, told.operation))
        if number is None:
            group: RecordGroup = transaction_group(transaction, topic, told.operation, headers=self.lines.headers)
            group = replace(group, is_barrier=told.operation == "truncate" and told.key is None)
            number = self._groups[topic, told.operation] = self._section.group(group)
        return number

    def _told(self) -> list[list[_RecordFacts]]:
        """Returns each change's records, in their order."""
        told: list[list[_RecordFacts]] = [[] for _ in range(self.message.change_count)]
        for part in self.message.parts:
            match part:
                case TableChanges():
                    self._tell_rows(part, told)
                case Truncation(cascade=cascade, restart_identity=restart_identity):
                    for table in map(own_table, part.tables):
                        frame = _truncation(table, cascade=cascade, restart_identity=restart_identity)
                        told[part.change_index].append(_RecordFacts(table, "truncate", self.lines.keys.of_table(table), frame))
                case DefinitionChange():
                    pass
                case unreachable:
                    assert_never(unreachable)
        return told

    def _tell_rows(self, part: TableChanges, told: list[list[_RecordFacts]]) -> None:
        table, (keys, old_keys) = own_table(part.table), self.lines.keys.of_changes(part)
        frames = row_frames(part, table.oid)
        of_rows = zip(part.change_indexes, part.operations, keys, old_keys, frames, strict=True)
        for row, (index, operation, key, old_key, frame) in enumerate(of_rows):
            if old_key is not None and old_key != key:
                told[index] += self._moved(part, row, table, (old_key, key))
                continue
            told[index].append(_RecordFacts(table, _OPERATIONS[operation], key, frame))
            if self.lines.tombstones and operation == DELETE and key is not None:
                told[index].append(_RecordFacts(table, "delete", key, None))

    def _moved(self, part: TableChanges, row: int, table: Table, keys: tuple[bytes, bytes | None]) -> Iterator[_RecordFacts]:
        """Yields the records of an update that gives the row another key."""
        left = part.select([row])
        assert left.old is not None
        assert left.old_kinds is not None
        arrived = _completed(left)
        if arrived is None:
            self._incomplete.add(part.change_indexes[row])
            return
        left.operations[0], arrived.operations[0] = DELETE, INSERT
        yield _RecordFacts(table, "delete", keys[0], row_frames(left, table.oid)[0])
        if self.lines.tombstones:
            yield _RecordFacts(table, "delete", keys[0], None)
        yield _RecordFacts(table, "insert", keys[1], row_frames(arrived, table.oid)[0])


def _completed(change: TableChanges) -> TableChanges | None:
    """Returns the whole new row of one update; None when it is not known."""
    assert change.old is not None
    assert change.old_kinds is not None
    is_known = change.old_kinds[0] == OLD_ROW
    columns: list[list[Value]] = []
    for new, old in zip(change.new, change.old, strict=True):
        value = old[0] if new[0] is UNCHANGED and is_known else new[0]
        if value is UNCHANGED:
            return None
        columns.append([value])
    return TableChanges(change.table, bytearray(change.operations), change.change_indexes, columns)


def _truncation(table: Table, *, cascade: bool, restart_identity: bool) -> bytes:
    return encode_message(Truncate(cascade, restart_identity, (table.oid,)))
