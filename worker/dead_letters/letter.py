"""The body of a dead letter: one change that decodes without its message. Tasks make it, driver and commands read it. Pure.

The change is the frame that the source sent. Begin and Relation are from the message; the Commit is created, because
the transaction may continue in another message. A copied row was never a frame: it becomes the corresponding Insert, or
Delete.
"""

from __future__ import annotations

from pgsluice.shared.pgoutput import decode_message, encode_message, encode_messages
from pgsluice.shared.pgoutput.messages import OLD_KEY, Begin, Commit, Delete, Insert, Relation, RelationColumn, Truncate, Update
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.message import Descriptor, encode_body, split_body
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import Table, Value


def changes_of(letter: DeadLetter, sequence: int) -> MessageChanges:
    """Returns the dead letter's one change, as a message with that sequence."""
    return decode_changes(letter.body, first_sequence=sequence, sequence=sequence, first_ordinal=letter.position.ordinal)


class ChangeFrames:
    """The frames of one message body, by the number that ``change_indexes`` give its changes."""

    def __init__(self, body: bytes) -> None:
        descriptor, frames = split_body(body)
        self._tables = {table.oid: table for table in Descriptor.decode(descriptor).tables}
        self._relations: dict[int, bytes] = {}
        self._types = [frame for frame in frames if frame[:1] == b"Y"]
        self._changes: list[tuple[bytes, bytes]] = []
        begin = b""
        for frame in frames:
            if frame[:1] == b"B":
                begin = frame
            elif frame[:1] == b"R":
                relation = decode_message(frame)
                assert isinstance(relation, Relation)
                self._relations[relation.oid] = frame
            elif frame[:1] in (b"I", b"U", b"D", b"T"):
                self._changes.append((begin, frame))

    def letter_body(self, change_index: int) -> bytes:
        begin, change = self._changes[change_index]
        oids = _relation_oids(change)
        descriptor = Descriptor(tuple(self._tables[oid] for oid in oids)).encode()
        head = [*self._types, *(self._relations[oid] for oid in oids)]
        decoded = decode_message(begin)
        assert isinstance(decoded, Begin)
        return encode_body(descriptor, [*head, begin, change, encode_message(_commit_of(decoded))])


def copied_row_body(copied: CopiedRows, row: tuple[Value, ...]) -> bytes:
    """``row`` holds no UNCHANGED: COPY sends every value."""
    begin = Begin(LSN(0), 0, 0)
    change: Insert | Delete = Insert(copied.table.oid, row)
    if copied.mark.is_deleted(copied.table, row):
        key = tuple(value if i in copied.table.key else None for i, value in enumerate(row))
        change = Delete(copied.table.oid, OLD_KEY, key)
    frames = encode_messages([_relation(copied.table), begin, change, _commit_of(begin)])
    return encode_body(Descriptor((copied.table,)).encode(), frames)


def _relation_oids(change: bytes) -> tuple[int, ...]:
    decoded = decode_message(change)
    # a single kind: of the messages, which are all decoded here, only the truncation names several tables
    if isinstance(decoded, Truncate):
        return decoded.relation_oids
    assert isinstance(decoded, Insert | Update | Delete)
    return (decoded.relation_oid,)


def _commit_of(begin: Begin) -> Commit:
    return Commit(0, begin.final_lsn, begin.final_lsn, begin.committed_at)


def _relation(table: Table) -> Relation:
    columns = tuple(RelationColumn(column.identity_key, column.name, column.type_oid, column.typmod) for column in table.columns)
    return Relation(table.oid, table.schema, table.name, table.replica_identity, columns)
