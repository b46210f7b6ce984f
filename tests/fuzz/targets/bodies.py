"""Bodies of messages and records: frames and copied rows, as workers read them, compressed bodies, letters, receipts of sinks.

Rows are read in two ways, one by one and all at once as COPY text; both must find the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Protocol, Self

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.messages import Begin, Insert, PgoutputMessage, Relation
from pgsluice.shared.rows import parts
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.rows.copy_text import decode_rows, encode_columns
from pgsluice.shared.wire.compressed_body import BodyCompressor, decompress_body
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.kafka_range import IndexEntry, KafkaRange, TopicEnds
from pgsluice.shared.wire.kafka_record import decode_record, encode_record
from pgsluice.shared.wire.message import encode_body, split_body
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.shared.wire.snapshot_message import encode_table, split_snapshot_body
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.worker.batches.deleted_rows import split_deleted
from pgsluice.worker.batches.unreadable_rows import unreadable_changes, unreadable_copied
from pgsluice.worker.sinks.postgres.fold.piece import FoldedPartition, LoadedPartition
from pgsluice.worker.sinks.search.search_receipt import SearchReceipt
from tests.fuzz.target import is_same, read
from tests.shared.pgoutput.bodies import body_of, cut_bodies, table_of
from tests.shared.pgoutput.corpus import recordings

_MOST_DECOMPRESSED = 1 << 20
_ALWAYS, _NEVER = 1, 1 << 62
"""The number of rows from which on they are read all at once."""


class _Encoded(Protocol):
    def encode(self) -> bytes: ...

    @classmethod
    def decode(cls, body: bytes, /) -> Self: ...


_ENCODED: tuple[type[_Encoded], ...] = (DeadLetter, IndexEntry, FoldedPartition, LoadedPartition, SearchReceipt)


def feed(data: bytes) -> None:
    _split(data)
    _changes(data)
    _copied(data)
    _compressed(data)
    for kind in _ENCODED:
        _encoded(kind, data)
    record = read(lambda: decode_record(data), WireError)
    if record is not None:
        is_same(
            record,
            decode_record(encode_record(record.table, record.relation, record.begin, record.frame))._replace(
                descriptor=record.descriptor
            ),
        )


def _encoded(kind: type[_Encoded], data: bytes) -> None:
    value = read(lambda: kind.decode(data), WireError)
    if value is not None:
        is_same(value, kind.decode(value.encode()))


def _split(data: bytes) -> None:
    found = read(lambda: split_body(data), WireError)
    if found is not None:
        is_same(data, encode_body(*found))


def _changes(data: bytes) -> None:
    found = _decoded(data, _NEVER)
    is_same(found, _decoded(data, _ALWAYS))
    if found is not None:
        unreadable_changes(found)


def _decoded(data: bytes, fewest: int) -> MessageChanges | None:
    parts.FEWEST_PLAIN_ROWS = fewest
    return read(lambda: decode_changes(data, first_sequence=1, sequence=1, first_ordinal=1), WireError)


def _copied(data: bytes) -> None:
    found = read(lambda: split_snapshot_body(data), WireError)
    if found is None:
        return
    table, text = found
    columns = read(lambda: decode_rows(bytes(text), len(table.columns)), WireError)
    if columns is None:
        return
    rows = bytes(text).count(b"\n")
    if columns:
        is_same(columns, decode_rows(encode_columns(columns, rows), len(columns)))
    copied = CopiedRows(1, table, "snapshot", rows, text, restarts=False)
    unreadable_copied(copied)
    for deletes in (0, len(table.columns) or None):
        copied = CopiedRows(1, table, "snapshot", rows, text, restarts=False, mark=RunMark(1, 1, deletes=deletes))
        is_same(sum(each.rows for each in split_deleted(copied)), rows)


def _compressed(data: bytes) -> None:
    size = int.from_bytes(data[:3], "big") % _MOST_DECOMPRESSED
    read(lambda: decompress_body(data[3:], size), WireError)
    compressed = _compressor().compress(data)
    if compressed is not None:
        is_same(data, decompress_body(compressed, len(data)))


@cache
def _compressor() -> BodyCompressor:
    return BodyCompressor()


def seeds() -> Iterator[bytes]:
    for recording in recordings()[: len(recordings()) // 2]:
        yield from _seeds_of([decode_message(message) for message in recording.messages])
    table = table_of(Relation(1, "public", "t", ReplicaIdentity.DEFAULT, ()))
    yield FoldedPartition((), ()).encode()
    yield LoadedPartition((1, 2), (table,)).encode()
    yield SearchReceipt(replaced=[(table, "s")], filled=["t"]).encode()
    yield IndexEntry(KafkaRange("c", "t", "i", 0, 1, 7), {"t": TopicEnds("i", (7, 0))}).encode()
    text = b"id\tname\n" * 200
    compressed = _compressor().compress(text)
    assert compressed is not None
    yield len(text).to_bytes(3, "big") + compressed


def _seeds_of(messages: list[PgoutputMessage]) -> Iterator[bytes]:
    yield from (body.data for body in cut_bodies(messages, 5))
    relations = {message.oid: message for message in messages if isinstance(message, Relation)}
    for message in messages:
        if isinstance(message, Insert) and all(isinstance(value, bytes | None) for value in message.new):
            relation, begin = relations[message.relation_oid], Begin(LSN(7), 1, 2)
            table = table_of(relation)
            body = body_of([relation, begin, message])
            _, (relation_frame, _, frame) = split_body(body)
            yield encode_record(table, relation_frame, begin, frame)
            yield encode_table(table) + encode_columns([[value] for value in message.new], 1)
            yield DeadLetter("w", Position(LSN(7), 1), "public.t", "no", "2026-01-01", 3, "", 1, body).encode()
            return
