"""Bodies of stream messages made of pgoutput messages, and what a reader must find in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pgsluice.shared.pgoutput import encode_messages
from pgsluice.shared.pgoutput.messages import (
    NO_OLD_ROW,
    Begin,
    Commit,
    Delete,
    Insert,
    PgoutputMessage,
    Relation,
    Row,
    Truncate,
    Update,
)
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, MessageChanges, TableChanges, Truncation
from pgsluice.shared.wire.message import Descriptor, encode_body
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import Column, Table

CHANGE_TYPES = (Insert, Update, Delete, Truncate)


class Change(NamedTuple):
    """One change as both decoders can tell it. ``old`` is empty without an old image, ``new`` for a DELETE."""

    position: Position
    xid: int
    committed_at: int
    table: Table
    operation: int
    old_kind: int
    old: Row
    new: Row


class TableTruncation(NamedTuple):
    position: Position
    tables: tuple[Table, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Body:
    data: bytes
    first_ordinal: int


def table_of(relation: Relation) -> Table:
    """What the catalog could say of ``relation``; the identity key is taken for the primary key."""
    keyed = [index for index, column in enumerate(relation.columns) if column.identity_key]
    return Table(
        oid=relation.oid,
        schema=relation.schema,
        name=relation.name,
        replica_identity=relation.replica_identity,
        columns=tuple(
            Column(
                name=column.name,
                type_oid=column.type_oid,
                type_name="integer" if column.type_oid == 23 else "text",
                typmod=column.typmod,
                not_null=column.identity_key,
                primary_key_position=keyed.index(index) + 1 if column.identity_key else None,
                identity_key=column.identity_key,
                identity="",
                generated="",
            )
            for index, column in enumerate(relation.columns)
        ),
    )


def body_of(messages: Iterable[PgoutputMessage]) -> bytes:
    """One body of ``messages`` as they are, behind a descriptor of the relations in them."""
    messages = list(messages)
    described = {message.oid: table_of(message) for message in messages if isinstance(message, Relation)}
    return encode_body(Descriptor(tuple(described.values())).encode(), encode_messages(messages))


def cut_bodies(messages: Sequence[PgoutputMessage], changes_per_body: int) -> list[Body]:
    """The messages in bodies that each decode alone: cut after so many changes, and before a table's definition changes."""
    bodies: list[Body] = []
    relations: dict[int, Relation] = {}
    begin: Begin | None = None
    ordinal, changes, first_ordinal = 0, 0, 1
    held: list[PgoutputMessage] = []

    def cut() -> None:
        nonlocal changes, first_ordinal, held
        if any(not isinstance(message, Relation | Begin) for message in held):
            bodies.append(Body(body_of([*relations.values(), *held]), first_ordinal))
        changes, first_ordinal, held = 0, ordinal + 1 if begin else 1, [begin] if begin else []

    for message in messages:
        if isinstance(message, Relation):
            if relations.get(message.oid, message) != message:
                cut()
            relations[message.oid] = message
        elif isinstance(message, Begin):
            begin, ordinal = message, 0
        elif isinstance(message, CHANGE_TYPES):
            ordinal, changes = ordinal + 1, changes + 1
        held.append(message)
        if isinstance(message, Commit):
            begin = None
        if changes >= changes_per_body:
            cut()
    cut()
    return bodies


def changes_of_messages(messages: Iterable[PgoutputMessage]) -> list[Change | TableTruncation]:
    """What ``messages`` tell, found the slow and obvious way."""
    found: list[Change | TableTruncation] = []
    tables: dict[int, Table] = {}
    begin, ordinal = Begin(LSN(0), 0, 0), 0

    def tell(oid: int, operation: int, old_kind: int, old: Row, new: Row) -> None:
        found.append(Change(position, begin.xid, begin.committed_at, tables[oid], operation, old_kind, old, new))

    for message in messages:
        ordinal += isinstance(message, CHANGE_TYPES)
        position = Position(begin.final_lsn, ordinal)
        match message:
            case Begin():
                begin, ordinal = message, 0
            case Relation():
                tables[message.oid] = table_of(message)
            case Insert(oid, new):
                tell(oid, INSERT, NO_OLD_ROW, (), new)
            case Update(oid, old_kind, old, new):
                tell(oid, UPDATE, old_kind, old, new)
            case Delete(oid, old_kind, old):
                tell(oid, DELETE, old_kind, old, ())
            case Truncate(cascade, restart_identity, oids):
                found.append(TableTruncation(position, tuple(tables[oid] for oid in oids), cascade, restart_identity))
    return found


def changes_of_columns(changes: MessageChanges) -> list[Change | TableTruncation]:
    """The same of a decoded stream message, back in order."""
    transactions = [t for t in changes.transactions for _ in range(t.first_change, t.end_change)]
    assert len(transactions) == changes.change_count
    found: dict[int, Change | TableTruncation] = {}
    for part in changes.parts:
        if isinstance(part, TableChanges):
            for row, index in enumerate(part.change_indexes):
                transaction = transactions[index]
                head = (transaction.position(index), transaction.xid, transaction.committed_at, part.table)
                found[index] = Change(*head, part.operations[row], *_images(part, row))
        elif isinstance(part, Truncation):
            position = transactions[part.change_index].position(part.change_index)
            found[part.change_index] = TableTruncation(position, part.tables, part.cascade, part.restart_identity)
    assert sorted(found) == list(range(changes.change_count))
    return [found[index] for index in range(changes.change_count)]


def _images(part: TableChanges, row: int) -> tuple[int, Row, Row]:
    old_kind = NO_OLD_ROW
    old: Row = ()
    if part.old is not None:
        assert part.old_kinds is not None
        old_kind = part.old_kinds[row]
        sent: Row = tuple(column[row] for column in part.old)
        if old_kind == NO_OLD_ROW:
            assert set(sent) <= {None}
        else:
            old = sent
    new: Row = tuple(column[row] for column in part.new)
    if part.operations[row] == DELETE:
        assert set(new) <= {None}
        new = ()
    return old_kind, old, new
