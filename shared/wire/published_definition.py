"""A definition in the stream of changes: the source's message, and the previous definition.

    logical message in a change message (``shared.wire.message``), whose prefix is DDL_PREFIX
      content one JSON object in UTF-8: the fields of ``shared.wire.definition`` without the token, and
        previous  what the table (or the type) was like before, in the same form; null where that is not known
        empty     of a table: oids of partitions that are new in it and had no rows when they were attached; without the
                  key it was not checked
      or nothing at all, where a message was forged, or where the next definition includes all of it and no row is between:
      it has the ordinal of a change, without effect

So a worker that applies it needs no memory, and cannot compare with a later definition when it goes back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, assert_never

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.definition import (
    _NUMBER,
    NOTE_TAG,
    VERSION,
    DefinedColumn,
    DefinitionEvent,
    DefinitionUnknown,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
    _event,
    _event_fields,
    _list,
    _of_types,
)

Defined = TableDefinition | TypeDefined


@dataclass(frozen=True, slots=True)
class PublishedDefinition:
    """``previous`` is a TableDefinition for what concerns a table, a TypeDefined for a type. ``empty`` are oids of partitions
    that were attached without rows."""

    event: DefinitionEvent
    previous: Defined | None
    empty: frozenset[int] = frozenset()

    def encode(self) -> bytes:
        previous = None if self.previous is None else encode_defined(self.previous)
        empty = {"empty": sorted(self.empty)} if self.empty else {}
        return orjson.dumps({"v": VERSION} | _event_fields(self.event) | {"previous": previous} | empty)

    @classmethod
    def decode(cls, content: bytes) -> PublishedDefinition | None:
        """Returns None for what was forged. Raises WireError, and nothing else, for what is not of this form."""
        if not content:
            return None
        try:
            fields: Any = orjson.loads(content)
            if fields["v"] != VERSION:
                raise ValueError(f"version {VERSION} is known")
            previous = fields["previous"]
            empty = frozenset(_of_types(oid, _NUMBER) for oid in _list({"empty": []} | fields, "empty"))
            return cls(_event(fields), None if previous is None else decode_defined(previous), empty)
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"a definition in the stream is malformed ({type(error).__name__})") from None


def encode_defined(defined: Defined) -> dict[str, Any]:
    """Encodes for JSON."""
    # a single kind: the previous definition is a table or a type, and nothing else
    return _event_fields(TableDefined("", defined) if isinstance(defined, TableDefinition) else defined)


def decode_defined(fields: dict[str, Any]) -> Defined:
    """Decodes the JSON of ``encode_defined``. Raises KeyError, TypeError or ValueError for what it does not make."""
    event = _event(fields)
    if isinstance(event, TableDefined):
        return event.table
    if isinstance(event, TypeDefined):
        return event
    raise ValueError("neither a table nor a type")


def alters(definition: PublishedDefinition) -> bool:
    """Returns whether anything was altered, as far as known: a note describes a table's initial state."""
    return definition.event.tag != NOTE_TAG or definition.previous is not None


def added_columns(definition: PublishedDefinition) -> list[DefinedColumn]:
    """Returns the columns that rows have from here on and did not have before, as far as known."""
    event, previous = definition.event, definition.previous
    if not (isinstance(event, TableDefined | TablePublished) and isinstance(previous, TableDefinition)):
        return []
    before = {column.number for column in previous.columns if column.is_published}
    return [column for column in event.table.columns if column.is_published and column.number not in before]


def without_columns(definition: PublishedDefinition, numbers: Collection[int]) -> PublishedDefinition:
    """Returns the definition as if the table did not have, nor ever had, the columns of these numbers."""

    def left(table: TableDefinition) -> TableDefinition:
        columns = tuple(column for column in table.columns if column.number not in numbers)
        identity = tuple(number for number in table.identity_columns if number not in numbers)
        return replace(table, columns=columns, identity_columns=identity)

    event, previous = definition.event, definition.previous
    if not isinstance(event, TableDefined | TablePublished):
        return definition
    was = left(previous) if isinstance(previous, TableDefinition) else previous
    return replace(definition, event=replace(event, table=left(event.table)), previous=was)


Concerned = TableDefinition | TableUnpublished | TableGone | TableRewritten | TypeDefined


def concerned(event: DefinitionEvent) -> Concerned | None:
    """Returns the object with ``oid``, ``schema`` and ``name`` of the table or the type; None where the source could
    not determine it."""
    match event:
        case TableDefined(table=table) | TablePublished(table=table):
            return table
        case TableUnpublished() | TableGone() | TableRewritten() | TypeDefined():
            return event
        case DefinitionUnknown():
            return None
        case unreachable:
            assert_never(unreachable)


def kind_of(event: DefinitionEvent) -> str:
    """Returns the kind as in JSON."""
    return str(_event_fields(event)["kind"])
