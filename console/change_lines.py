"""Reads JSON lines, as ``worker.sinks.lines.json_lines`` writes them, back into changes.

A line does not contain its columns' types. They are taken from the table that the caller knows, or guessed from all
values of the column: whole numbers are bigint, other numbers numeric, true and false boolean, objects and lists jsonb,
anything else text. The key is the lines', and a table whose old rows hold more than keys is treated as one with REPLICA
IDENTITY FULL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from pgsluice.shared.errors import UsageError
from pgsluice.shared.pgoutput.messages import OLD_KEY, OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, MessageChanges, TableChanges, Transaction
from pgsluice.shared.wire.table import UNCHANGED, Column, ReplicaIdentity, Table, Value

Name = tuple[str, str]
"""Schema and table."""

_OPERATIONS = {"INSERT": INSERT, "READ": INSERT, "UPDATE": UPDATE, "DELETE": DELETE}
_PASSED_OVER = {"BEGIN", "COMMIT", "TRUNCATE", "RESTART"}
"""Lines without a row."""

_TEXT, _BIGINT, _NUMERIC = (25, "text"), (20, "bigint"), (1700, "numeric")
_BOOLEAN, _DOCUMENT = (16, "boolean"), (3802, "jsonb")


class _Digits(str):
    """A number as it is written."""

    __slots__ = ()


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; numbers keep their digits. Raises ValueError."""
    return json.loads(text, parse_int=_Digits, parse_float=_Digits)


def format_json(value: object) -> str:
    """Formats as JSON: the inverse of ``parse_json``."""
    return orjson.dumps(value, default=_as_it_is, option=orjson.OPT_PASSTHROUGH_SUBCLASS).decode()


def _as_it_is(digits: _Digits) -> orjson.Fragment:
    return orjson.Fragment(str(digits))


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """``number`` counts the lines of the input from 1; ``content`` is the line, numbers as ``_Digits``."""

    number: int
    content: dict[str, Any] = field(repr=False)

    @property
    def operation(self) -> str:
        return str(self.content["operation"])

    @property
    def name(self) -> Name:
        return str(self.content["schema"]), str(self.content["table"])

    def row(self, image: str) -> dict[str, Any] | None:
        row: dict[str, Any] | None = self.content.get(image)
        return row

    @property
    def columns(self) -> set[str]:
        """All columns that the line speaks of."""
        return {*(self.row("before") or {}), *(self.row("after") or {}), *self.content.get("unchanged", [])}

    def message(self, table: Table) -> MessageChanges:
        """Returns the change as a separate message."""
        before, after = self.row("before"), self.row("after")
        changes = TableChanges(table, bytearray([_OPERATIONS[self.operation]]), [0])
        changes.new = [[_value(after, column.name)] for column in table.columns] if after else [[None] for _ in table.columns]
        if before is not None:
            is_whole = table.replica_identity is ReplicaIdentity.FULL
            changes.old = [[_value(before, column.name) if is_whole or column.identity_key else None] for column in table.columns]
            changes.old_kinds = bytearray([OLD_ROW if is_whole else OLD_KEY])
        transaction = Transaction(0, 0, 0, 0, 1, 1, begins=True, commits=True)
        return MessageChanges(self.number, self.number, [transaction], [changes], 1)


def read_lines(lines: Iterable[bytes], place: str) -> list[ChangeLine]:
    """Returns the lines that hold rows. ``place`` names the input. Raises UsageError with the number of the first that
    cannot be read."""
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            content = parse_json(line)
            if content["operation"] not in _PASSED_OVER:
                found.append(_checked(ChangeLine(number, content)))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{place}:{number}: not a change as a JSON line ({type(error).__name__})",
                "give lines as 'pgsluice worker stdout' prints them",
            ) from None
    return found


def _checked(line: ChangeLine) -> ChangeLine:
    """Raises KeyError or TypeError for a line without what a change has."""
    _ = _OPERATIONS[line.operation], line.name
    rows = [line.row("before"), line.row("after")]
    if not any(isinstance(row, dict) for row in rows) or any(row is not None and not isinstance(row, dict) for row in rows):
        raise TypeError
    return line


def guess_tables(lines: Sequence[ChangeLine]) -> dict[Name, Table]:
    """Returns tables that fit the lines."""
    by_name: dict[Name, list[ChangeLine]] = {}
    for line in lines:
        by_name.setdefault(line.name, []).append(line)
    return {name: _guess_table(oid, name, own) for oid, (name, own) in enumerate(by_name.items(), 1)}


def _guess_table(oid: int, name: Name, lines: Sequence[ChangeLine]) -> Table:
    values: dict[str, list[Any]] = {}
    key: list[str] = []
    shows_more_than_keys = False
    for line in lines:
        key = key or list(line.row("key") or {})
        for row in (line.row("after") or {}, line.row("before") or {}, dict.fromkeys(line.content.get("unchanged", []))):
            for column, value in row.items():
                values.setdefault(column, []).append(value)
    for line in lines:
        shows_more_than_keys |= bool(set(line.row("before") or {}) - set(key))
    identity = ReplicaIdentity.FULL if shows_more_than_keys or not key else ReplicaIdentity.DEFAULT
    columns = []
    for column, found in values.items():
        type_oid, type_name = _guess_type(found)
        position = key.index(column) + 1 if column in key else None
        in_identity = identity is ReplicaIdentity.FULL or position is not None
        columns.append(Column(column, type_oid, type_name, -1, position is not None, position, in_identity, "", ""))
    return Table(oid, *name, identity, tuple(columns))


def _guess_type(values: Sequence[Any]) -> tuple[int, str]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return _BOOLEAN
    if kinds == {_Digits}:
        return _BIGINT if all(value is None or value.lstrip("-").isdigit() for value in values) else _NUMERIC
    return _DOCUMENT if kinds and kinds <= {dict, list} else _TEXT


def _value(row: Mapping[str, Any], column: str) -> Value:
    """Returns a column's value as Postgres text; a missing one was not sent."""
    value = row.get(column, UNCHANGED)
    match value:
        case bool():
            return b"t" if value else b"f"
        case str():
            return value.encode()
        case dict() | list():
            return format_json(value).encode()
    return UNCHANGED if value is UNCHANGED else None


def known_tables(tables: Iterable[Table]) -> dict[Name, Table]:
    return {(table.schema, table.name): table for table in tables}
