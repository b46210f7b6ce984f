"""Builds decoded messages, so that what takes ``MessageChanges`` is tested without a broker, a decoder or Spark.

orders = table("shop.orders", "id bigint", "note text")
message(1, insert(orders, b"1", b"first"), update(orders, b"1", UNCHANGED), delete(orders, b"1", None))
copied(1, orders, (b"1", b"first"), (b"2", None))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY, OLD_ROW
from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    UPDATE,
    CopiedRows,
    DefinitionChange,
    MessageChanges,
    Part,
    TableChanges,
    Transaction,
    Truncation,
)
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table, Value

TYPE_OIDS = {
    "boolean": 16,
    "bytea": 17,
    "name": 19,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "oid": 26,
    "json": 114,
    "cidr": 650,
    "real": 700,
    "float8": 701,
    "inet": 869,
    "integer[]": 1007,
    "text[]": 1009,
    "character": 1042,
    "varchar": 1043,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "timestamptz": 1184,
    "interval": 1186,
    "numeric[]": 1231,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}
UNKNOWN_TYPE_OID = 99_999

Row = Sequence[Value]


def table(
    name: str,
    *columns: str | tuple[str, str],
    key: Sequence[str] = ("id",),
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    identity_columns: Sequence[str] | None = None,
) -> Table:
    """``columns`` are "name type", or a pair when the type has several words. ``key`` names the primary key;
    ``identity_columns`` the replica identity's columns, where they are others."""
    parsed = [column.rsplit(" ", 1) if isinstance(column, str) else column for column in columns]
    in_identity = list(identity_columns if identity_columns is not None else key)
    if identity is ReplicaIdentity.FULL:
        in_identity = [column for column, _ in parsed]
    schema, _, table_name = name.rpartition(".")
    return Table(
        oid=crc32(name.encode()),
        schema=schema or "public",
        name=table_name,
        replica_identity=identity,
        columns=tuple(
            Column(
                name=column,
                type_oid=TYPE_OIDS.get(type_name, UNKNOWN_TYPE_OID),
                type_name=type_name,
                typmod=-1,
                not_null=column in key or (column in in_identity and identity is not ReplicaIdentity.FULL),
                primary_key_position=list(key).index(column) + 1 if column in key else None,
                identity_key=column in in_identity,
                identity="",
                generated="",
            )
            for column, type_name in parsed
        ),
    )


@dataclass(frozen=True)
class Change:
    """One change of one row. ``old`` is a whole row; ``old_kind`` determines how much of it was sent."""

    table: Table
    operation: int
    new: Row | None
    old: Row | None = None
    old_kind: int = NO_OLD_ROW


@dataclass(frozen=True)
class TruncateChange:
    tables: tuple[Table, ...]
    cascade: bool = False
    restart_identity: bool = False


AnyChange = Change | TruncateChange | PublishedDefinition
"""A change, a truncation, or a definition, which is alone in its message in a stream."""


@dataclass(frozen=True)
class TransactionPart:
    """The part of one transaction in a message."""

    changes: tuple[AnyChange, ...]
    commit_lsn: int
    xid: int
    committed_at: int
    first_ordinal: int
    commits: bool


def insert(table: Table, *new: Value) -> Change:
    return Change(table, INSERT, new)


def update(table: Table, *new: Value, old: Row | None = None) -> Change:
    """``old`` is given when the key changed, or the replica identity is FULL."""
    return Change(table, UPDATE, new, old, NO_OLD_ROW if old is None else _old_kind(table))


def delete(table: Table, *old: Value) -> Change:
    return Change(table, DELETE, None, old, _old_kind(table))


def truncate(*tables: Table, cascade: bool = False, restart_identity: bool = False) -> TruncateChange:
    return TruncateChange(tables, cascade, restart_identity)


def transaction(
    commit_lsn: int,
    *changes: AnyChange,
    xid: int = 7,
    committed_at: int = 0,
    first_ordinal: int = 1,
    commits: bool = True,
) -> TransactionPart:
    """Returns a whole transaction, unless ``first_ordinal`` puts its begin before the message or ``commits`` is false
    because it continues."""
    return TransactionPart(changes, commit_lsn, xid, committed_at, first_ordinal, commits)


def message(sequence: int, *changes: AnyChange) -> MessageChanges:
    """Returns a message that holds one whole transaction; its commit LSN is 1000 times the sequence."""
    return message_of(sequence, transaction(sequence * 1000, *changes, xid=sequence, committed_at=sequence))


def message_of(sequence: int, *transactions: TransactionPart) -> MessageChanges:
    """Returns a message that holds ``transactions``; rows of one table between two truncations are one part, as the
    decoder makes it."""
    parts: list[Part] = []
    open_parts: dict[Table, TableChanges] = {}
    transactions_in_message: list[Transaction] = []
    index = 0
    for part in transactions:
        first_change = index
        for change in part.changes:
            _place(change, index, parts, open_parts)
            index += 1
        transactions_in_message.append(_placed(part, first_change, index))
    return MessageChanges(sequence, sequence, transactions_in_message, parts, index)


def copied(sequence: int, table: Table, *rows: Row, snapshot: str = "first") -> CopiedRows:
    """Returns a message of the snapshot stream."""
    return CopiedRows(sequence, table, snapshot, len(rows), memoryview(b"".join(map(_copy_line, rows))), restarts=False)


def restart(sequence: int, table: Table, snapshot: str = "second") -> CopiedRows:
    """Returns a message that begins another copy of the table."""
    return CopiedRows(sequence, table, snapshot, 0, memoryview(b""), restarts=True)


def begins_run(sequence: int, table: Table, mark: RunMark) -> CopiedRows:
    """Returns a message that a pipeline's run begins with."""
    return CopiedRows(sequence, table, "pipeline", 0, memoryview(b""), restarts=mark.replaces, begins_run=True, mark=mark)


def ends_run(sequence: int, table: Table, mark: RunMark) -> CopiedRows:
    """Returns the message that a run which replaces all rows ends with."""
    return CopiedRows(sequence, table, "pipeline", 0, memoryview(b""), restarts=False, mark=replace(mark, ends=True))


def of_run(sequence: int, table: Table, mark: RunMark, *rows: Row) -> CopiedRows:
    """Returns a message with rows of the run."""
    return replace(copied(sequence, table, *rows, snapshot="pipeline"), mark=mark)


def _copy_line(row: Row) -> bytes:
    return b"\t".join(_copy_field(value) for value in row) + b"\n"


def _copy_field(value: Value) -> bytes:
    if not isinstance(value, bytes):
        return b"\\N"
    for special, letter in ((b"\\", b"\\"), (b"\t", b"t"), (b"\n", b"n"), (b"\r", b"r")):
        value = value.replace(special, b"\\" + letter)
    return value


def _placed(part: TransactionPart, first_change: int, end_change: int) -> Transaction:
    return Transaction(
        part.commit_lsn,
        part.xid,
        part.committed_at,
        first_change,
        end_change,
        part.first_ordinal,
        begins=part.first_ordinal == 1,
        commits=part.commits,
    )


def _place(change: AnyChange, index: int, parts: list[Part], open_parts: dict[Table, TableChanges]) -> None:
    # a single kind: the two that come between rows, which everything else is
    if isinstance(change, PublishedDefinition):
        open_parts.clear()
        parts.append(DefinitionChange(change, index))
        return
    if isinstance(change, TruncateChange):
        open_parts.clear()
        parts.append(Truncation(change.tables, index, change.cascade, change.restart_identity))
        return
    if change.table not in open_parts:
        open_parts[change.table] = TableChanges(change.table, new=[[] for _ in change.table.columns])
        parts.append(open_parts[change.table])
    _append(open_parts[change.table], index, change)


def _append(part: TableChanges, index: int, change: Change) -> None:
    width = len(part.table.columns)
    if change.old is not None and part.old is None:
        part.old = [[None] * len(part) for _ in range(width)]
        part.old_kinds = bytearray(len(part))
    part.operations.append(change.operation)
    part.change_indexes.append(index)
    for column in range(width):
        _values(part.new, column).append(None if change.new is None else change.new[column])
        if part.old is not None:
            _values(part.old, column).append(_sent(change, column))
    if part.old_kinds is not None:
        part.old_kinds.append(change.old_kind)


def _values(columns: Sequence[Sequence[Value]], column: int) -> list[Value]:
    """Returns the values of a part that is being built here."""
    values = columns[column]
    assert isinstance(values, list)
    return values


def _sent(change: Change, column: int) -> Value:
    if change.old is None or (change.old_kind == OLD_KEY and not change.table.columns[column].identity_key):
        return None
    return change.old[column]


def _old_kind(table: Table) -> int:
    return OLD_ROW if table.replica_identity is ReplicaIdentity.FULL else OLD_KEY
