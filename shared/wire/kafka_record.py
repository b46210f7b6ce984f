"""The format "pgsluice" of Kafka's records: a change for each record, in the wire's own form.

A record's value is a message body (``shared.wire.message``) that holds one change: the descriptor of its table, the
table's Relation, a Begin that names the source transaction, and one Insert, Update, Delete or Truncate. So any record
decodes alone, by whatever decodes a body or pgoutput. The descriptor is repeated in each record; the producer
compresses many of them together.

u32 length + JSON descriptor, then frames: u32 length + pgoutput message (all big-endian)

- Records of a key are in one partition, in commit order. There is no Commit: a transaction's records lie in several partitions.
- An update that gives a row another key is two records, as they may lie in two partitions: a Delete of the old key, an Insert
  with the new one.
- A copied row is an Insert whose Begin has the transaction id 0: no transaction of the source wrote it.
- A record without a value (a tombstone) adds nothing to the Delete before it.
"""

from __future__ import annotations

from typing import NamedTuple

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput import encode_message
from pgsluice.shared.pgoutput.decoder import BEGIN
from pgsluice.shared.pgoutput.messages import Begin
from pgsluice.shared.wire.message import Descriptor, encode_body, split_body
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import Table

NO_TRANSACTION = Begin(LSN(1), 0, 0)
"""The Begin of copied rows."""

_CHANGES = (b"I", b"U", b"D", b"T")


class ChangeRecord(NamedTuple):
    """The content of one record's value. ``descriptor`` and ``relation`` are encoded; ``table`` is their content."""

    table: Table
    descriptor: bytes
    relation: bytes
    begin: Begin
    frame: bytes


def encode_record(table: Table, relation: bytes, begin: Begin, frame: bytes) -> bytes:
    """``relation`` is the table's, encoded; ``frame`` one change of it."""
    return encode_body(Descriptor((table,)).encode(), [relation, encode_message(begin), frame])


def decode_record(value: bytes) -> ChangeRecord:
    """Raises WireError for a malformed record."""
    try:
        descriptor, (relation, begin, frame) = split_body(value)
        tables = Descriptor.decode(descriptor).tables
    except (WireError, ValueError):
        raise _foreign() from None
    is_change = relation[:1] == b"R" and begin[:1] == b"B" and frame[:1] in _CHANGES
    if not is_change or len(begin) != BEGIN.size or len(tables) != 1:
        raise _foreign()
    commit_lsn, committed_at, xid = BEGIN.unpack(begin)
    return ChangeRecord(tables[0], descriptor, relation, Begin(LSN(commit_lsn), committed_at, xid), frame)


def _foreign() -> WireError:
    return WireError(
        "a record does not hold a change in the format pgsluice",
        "let 'pgsluice worker kafka' with format: pgsluice write these topics, and no other program",
    )
