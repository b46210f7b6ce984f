"""The lines of ``format: json`` with ``row-layout: flat``, as ``worker.sinks.lines.flat_lines`` writes them."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict, get_args

from pgsluice.worker.sinks.lines.schemas.definition_forms import DefinitionForm
from pgsluice.worker.sinks.lines.schemas.field_forms import Position, Row, Snapshot, Timestamp, Unchanged, Xid


class _FlatTransaction(TypedDict):
    _position: Position
    _xid: Xid
    _committed_at: Timestamp


class _FlatTable(TypedDict):
    _schema: str
    _table: str


class FlatRead(_FlatTable):
    """A row that a snapshot copied."""

    _operation: Literal["READ"]
    _snapshot: Snapshot


class FlatInsert(_FlatTable, _FlatTransaction):
    """A row that was inserted."""

    _operation: Literal["INSERT"]


class FlatUpdate(_FlatTable, _FlatTransaction):
    """A row that was updated: ``_before`` is the old row, as far as it was sent."""

    _operation: Literal["UPDATE"]
    _before: NotRequired[Row]
    _unchanged: NotRequired[Unchanged]


class FlatDelete(_FlatTable, _FlatTransaction):
    """A row that was deleted, as far as it was sent."""

    _operation: Literal["DELETE"]


class FlatTruncate(_FlatTable, _FlatTransaction):
    """A table that was emptied."""

    _operation: Literal["TRUNCATE"]


class FlatRestart(_FlatTable):
    """The table is copied again: READ lines of it before this one no longer count."""

    _operation: Literal["RESTART"]
    _snapshot: Snapshot


class FlatDefinition(_FlatTransaction):
    """A table or a type was altered; ``_schema`` and ``_table`` are null if the source could not determine it."""

    _operation: Literal["DDL"]
    _schema: str | None
    _table: str | None
    _definition: DefinitionForm


FlatRow = FlatRead | FlatInsert | FlatUpdate | FlatDelete
"""The row's columns come in addition to the fields of the change, which a TypedDict cannot express."""

FlatLine = FlatRow | FlatTruncate | FlatRestart | FlatDefinition

FLAT_NAMES = frozenset(name for line in get_args(FlatLine) for name in line.__annotations__)
"""Names that no column may have."""
