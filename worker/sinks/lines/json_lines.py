"""Changes as JSON lines: one line per change, in commit order across tables.

    {"position": "16/B374D848:3", "operation": "UPDATE", "schema": "public", "table": "orders", "key": {"id": 7},
     "before": null, "after": {"id": 7, "total": 12.50}, "unchanged": ["note"],
     "xid": 731, "committed_at": "2026-01-31T09:15:00.123456Z"}

``key`` holds the columns that identify the row (the new row's; a DELETE has only the old row's), null when the table
has no key. ``before`` is the old row, as much of it as the replica identity sends (often the key columns only), null
when nothing was sent. ``after`` is the new row, null for a DELETE. ``unchanged``, present when it is not empty, names
the columns that ``after`` leaves out because the server did not send them; a value that the old row holds is taken from
there instead. A row that a snapshot copied has the operation READ, a null position and, in the place of the last two,
the snapshot's id:

    {"position": null, "operation": "READ", "schema": "public", "table": "orders", "key": {"id": 7}, "before": null,
     "after": {"id": 7, "total": 12.50}, "snapshot": "000000160B374D80-5f0c2e11"}

When a table is copied again, one RESTART line comes first, with ``key``, ``before`` and ``after`` null: READ lines of
that table before it become invalid.

With ``column_ids`` a row's line has the columns' numbers after ``table``, by ``pg_attribute.attnum``, which stays when
a column is renamed and is never reused (null where the stream lacks it):

"columns": {"id": 1, "total": 4}

A TRUNCATE has one line for each of its tables, with ``key``, ``before`` and ``after`` null, and ``"cascade": true`` and
``"restart_identity": true`` where given.

Values: int2, int4, int8 and oid, numeric, float4 and float8 are JSON numbers with every digit the server sent (read
them with a parser that keeps 64-bit integers and decimals). JSON has no NaN, Infinity and -Infinity: these are strings.
bool is true or false, NULL is null. json and jsonb are embedded as they are, line breaks between their tokens as spaces
(a JSON null and an SQL NULL are the same text). Everything else is the server's text, bytea in its ``\\x`` form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Literal, assert_never

import orjson

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
from pgsluice.shared.rows.copy_text import decode_rows
from pgsluice.shared.wire.position import POSTGRES_EPOCH, format_lsn
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.lines.definition_fields import concerned_name, definition_fields
from pgsluice.worker.sinks.lines.json_rows import (
    JsonColumn,
    Row,
    Slot,
    lines_of_slots,
    new_rows,
    old_rows,
    row_slots,
    whole_columns,
)
from pgsluice.worker.sinks.lines.schemas.json_forms import JsonBorder, JsonRestart


def as_changes(copied: CopiedRows) -> TableChanges:
    """Returns all rows as inserts, in order; ``change_indexes`` count the rows of their message. Raises WireError when
    they are not COPY text of that table."""
    columns = decode_rows(bytes(copied.data), len(copied.table.columns))
    numbers = list(map(copied.row_number, range(copied.rows)))
    return TableChanges(copied.table, bytearray([INSERT]) * copied.rows, numbers, columns)


_EPOCH = POSTGRES_EPOCH.replace(tzinfo=None)  # so that isoformat adds no zone
_OPERATIONS = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}


def encode_lines(message: MessageChanges, *, transactions: bool = False, column_ids: bool = False) -> list[bytes]:
    """Returns the message's lines in commit order, each ending in a line feed: one element per change (the lines of a
    change that goes to several tables are one element), none for a change that is in no part.

    With ``transactions`` a BEGIN line precedes the first change of each transaction and a COMMIT line follows its last,
    in the messages where it begins and commits. Raises WireError for a value that is not of its type.
    """
    stamps = Stamps(message)
    lines = [b""] * message.change_count
    for part in message.parts:
        match part:
            case TableChanges():
                _put_table_lines(part, stamps, lines, column_ids=column_ids)
            case Truncation():
                lines[part.change_index] += b"".join(_truncation_lines(part, stamps))
            case DefinitionChange():
                lines[part.change_index] += _definition_line(part, stamps)
            case unreachable:
                assert_never(unreachable)
    if transactions:
        lines = list(_with_borders(message.transactions, lines))
    return [line for line in lines if line]


def encode_copied(copied: CopiedRows, *, column_ids: bool = False) -> list[bytes]:
    """Returns the lines of copied rows in order: one RESTART line when they restart their table."""
    if copied.restarts:
        return [_restart_line(copied)]
    columns = whole_columns(copied.table, as_changes(copied).new)
    assert columns is not None, "a copied row has every value"
    tail = b'"snapshot":%b}\n' % orjson.dumps(copied.snapshot)
    ids = _column_ids(copied.table) if column_ids else None
    return lines_of_slots([b'{"position":null,"operation":"READ"', *row_slots(copied.table, columns, ids), tail], copied.rows)


def _restart_line(copied: CopiedRows) -> bytes:
    line: JsonRestart = {
        "position": None,
        "operation": "RESTART",
        "schema": copied.table.schema,
        "table": copied.table.name,
        "key": None,
        "before": None,
        "after": None,
        "snapshot": copied.snapshot,
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


class Stamps:
    """The transaction fields of lines, indexed by change."""

    __slots__ = ("committed_at", "positions", "tails", "xids")

    def __init__(self, message: MessageChanges) -> None:
        self.positions = [b""] * message.change_count
        """Positions as JSON."""
        self.tails = [b""] * message.change_count
        """The end of a line, as JSON."""
        self.xids = [0] * message.change_count
        self.committed_at = [""] * message.change_count
        for transaction in message.transactions:
            first, end = transaction.first_change, transaction.end_change
            lsn, ordinal = format_lsn(transaction.commit_lsn), transaction.first_ordinal
            position = b'"%b:%%d"' % lsn.encode()
            self.positions[first:end] = [position % (ordinal + i) for i in range(end - first)]
            committed_at = format_timestamp(transaction.committed_at)
            self.xids[first:end] = [transaction.xid] * (end - first)
            self.committed_at[first:end] = [committed_at] * (end - first)
            self.tails[first:end] = [b'"xid":%d,"committed_at":"%b"}\n' % (transaction.xid, committed_at.encode())] * (
                end - first
            )


def format_timestamp(microseconds: int) -> str:
    """Returns RFC 3339 in UTC with six decimals, of a server's timestamp (microseconds since 2000-01-01 UTC)."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"{_format_second(seconds)}.{fraction:06d}Z"


@lru_cache(maxsize=64)
def _format_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()


def _put_table_lines(changes: TableChanges, stamps: Stamps, lines: list[bytes], *, column_ids: bool) -> None:
    """Appends to ``lines[i]`` for each change index i in ``changes``."""
    ids = _column_ids(changes.table) if column_ids else None
    whole = whole_columns(changes.table, changes.new) if changes.old is None else None
    table_lines = _lines_one_by_one(changes, stamps, ids) if whole is None else _lines_of_new_rows(changes, whole, stamps, ids)
    for index, line in zip(changes.change_indexes, table_lines, strict=True):
        lines[index] += line


def _column_ids(table: Table) -> bytes:
    """Returns the columns' numbers as JSON."""
    return orjson.dumps({column.name: column.number or None for column in table.columns})


def _lines_one_by_one(changes: TableChanges, stamps: Stamps, ids: bytes | None) -> Iterator[bytes]:
    table = changes.table
    befores = old_rows(changes)
    afters, unchanged = new_rows(changes, befores)
    keys = _keys(changes, befores, afters)
    positions, xids, committed_at = stamps.positions, stamps.xids, stamps.committed_at
    columns = {} if ids is None else {"columns": orjson.Fragment(ids)}
    schema, name, dumps, end_line = table.schema, table.name, orjson.dumps, orjson.OPT_APPEND_NEWLINE
    for row, (index, operation) in enumerate(zip(changes.change_indexes, changes.operations, strict=True)):
        line: Row = {
            "position": orjson.Fragment(positions[index]),
            "operation": _OPERATIONS[operation],
            "schema": schema,
            "table": name,
            **columns,
            "key": keys[row],
            "before": befores[row],
            "after": afters[row],
        }
        if row in unchanged:
            line["unchanged"] = unchanged[row]
        line["xid"] = xids[index]
        line["committed_at"] = committed_at[index]
        yield dumps(line, option=end_line)


def _lines_of_new_rows(changes: TableChanges, columns: list[JsonColumn], stamps: Stamps, ids: bytes | None) -> list[bytes]:
    """Returns the lines of rows that have no old image."""
    indexes, only = changes.change_indexes, changes.operations[:1]
    if changes.operations.count(only) == len(changes):
        operations: list[Slot] = [_OPERATIONS[only[0]].encode()]
    else:
        operations = [[_OPERATIONS[operation].encode() for operation in changes.operations]]
    slots: list[Slot] = [b'{"position":', [stamps.positions[index] for index in indexes], b',"operation":"', *operations, b'"']
    tails = [stamps.tails[index] for index in indexes]
    return lines_of_slots([*slots, *row_slots(changes.table, columns, ids), tails], len(changes))


def _keys(changes: TableChanges, befores: Sequence[Row | None], afters: Sequence[Row | None]) -> Sequence[Row | None]:
    """Returns the columns that identify each row; None when the table has no key."""
    names = [changes.table.columns[i].name for i in changes.table.key]
    if not names:
        return [None] * len(changes)
    identifying = [after if after is not None else before or {} for after, before in zip(afters, befores, strict=True)]
    return [{name: row[name] for name in names if name in row} for row in identifying]


def _truncation_lines(truncation: Truncation, stamps: Stamps) -> Iterable[bytes]:
    index = truncation.change_index
    for table in truncation.tables:
        line: Row = {
            "position": orjson.Fragment(stamps.positions[index]),
            "operation": "TRUNCATE",
            "schema": table.schema,
            "table": table.name,
            "key": None,
            "before": None,
            "after": None,
        }
        if truncation.cascade:
            line["cascade"] = True
        if truncation.restart_identity:
            line["restart_identity"] = True
        line["xid"] = stamps.xids[index]
        line["committed_at"] = stamps.committed_at[index]
        yield orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _definition_line(change: DefinitionChange, stamps: Stamps) -> bytes:
    index = change.change_index
    schema, name = concerned_name(change.definition)
    line: Row = {
        "position": orjson.Fragment(stamps.positions[index]),
        "operation": "DDL",
        "schema": schema,
        "table": name,
        "key": None,
        "before": None,
        "after": None,
        **definition_fields(change.definition),
        "xid": stamps.xids[index],
        "committed_at": stamps.committed_at[index],
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _with_borders(transactions: Iterable[Transaction], lines: list[bytes]) -> Iterable[bytes]:
    for transaction in transactions:
        if transaction.begins:
            yield _border_line("BEGIN", transaction)
        yield from lines[transaction.first_change : transaction.end_change]
        if transaction.commits:
            yield _border_line("COMMIT", transaction)


def _border_line(operation: Literal["BEGIN", "COMMIT"], transaction: Transaction) -> bytes:
    line: JsonBorder = {
        "operation": operation,
        "xid": transaction.xid,
        "commit_lsn": format_lsn(transaction.commit_lsn),
        "committed_at": format_timestamp(transaction.committed_at),
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
