"""Bodies of stream messages made of the changes that ``pgsluice.testing.changes_builder`` makes."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.pgoutput import encode_messages
from pgsluice.shared.pgoutput import messages as pgoutput
from pgsluice.shared.pgoutput.messages import OLD_KEY
from pgsluice.shared.rows.changes import DELETE, INSERT, MessageChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.message import DDL_PREFIX, Descriptor, encode_body
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import AnyChange, Change, TransactionPart, TruncateChange


def body_of(*transactions: TransactionPart) -> bytes:
    tables = dict.fromkeys(table for part in transactions for change in part.changes for table in _tables(change))
    frames = [_relation(table) for table in tables] + [frame for part in transactions for frame in _frames(part)]
    return encode_body(Descriptor(tuple(tables)).encode(), encode_messages(frames))


def decoded(sequence: int, body: bytes, first_ordinal: int = 1) -> MessageChanges:
    return decode_changes(body, first_sequence=sequence, sequence=sequence, first_ordinal=first_ordinal)


def _tables(change: AnyChange) -> tuple[Table, ...]:
    if isinstance(change, PublishedDefinition):
        return ()
    return change.tables if isinstance(change, TruncateChange) else (change.table,)


def _relation(table: Table) -> pgoutput.Relation:
    columns = tuple(pgoutput.RelationColumn(c.identity_key, c.name, c.type_oid, c.typmod) for c in table.columns)
    return pgoutput.Relation(table.oid, table.schema, table.name, table.replica_identity, columns)


def _frames(part: TransactionPart) -> Iterator[pgoutput.PgoutputMessage]:
    yield pgoutput.Begin(LSN(part.commit_lsn), part.committed_at, part.xid)
    for change in part.changes:
        yield _frame(change)
    if part.commits:
        yield pgoutput.Commit(0, LSN(part.commit_lsn), LSN(part.commit_lsn), part.committed_at)


def _frame(change: AnyChange) -> pgoutput.PgoutputMessage:
    if isinstance(change, PublishedDefinition):
        return pgoutput.LogicalMessage(True, LSN(1), DDL_PREFIX, change.encode())
    if isinstance(change, TruncateChange):
        return pgoutput.Truncate(change.cascade, change.restart_identity, tuple(table.oid for table in change.tables))
    if change.operation == INSERT:
        return pgoutput.Insert(change.table.oid, tuple(change.new or ()))
    if change.operation == DELETE:
        return pgoutput.Delete(change.table.oid, change.old_kind, _old(change))
    return pgoutput.Update(change.table.oid, change.old_kind, _old(change) if change.old_kind else (), tuple(change.new or ()))


def _old(change: Change) -> pgoutput.Row:
    is_key = change.old_kind == OLD_KEY
    columns = zip(change.table.columns, change.old or (), strict=True)
    return tuple(None if is_key and not column.identity_key else value for column, value in columns)
