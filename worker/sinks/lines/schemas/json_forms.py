"""The lines of ``format: json``, as ``worker.sinks.lines.json_lines`` writes them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from pgsluice.worker.sinks.lines.schemas.definition_forms import (
    GoneForm,
    RewriteForm,
    TableDefinitionForm,
    TypeDefinitionForm,
    UnknownDefinitionForm,
)
from pgsluice.worker.sinks.lines.schemas.field_forms import Form, Lsn, Position, Row, Snapshot, Timestamp, Unchanged, Xid

Key = Annotated[Row | None, Form(description="The columns of the row's key, null when the table has none")]
ColumnIds = Annotated[
    dict[str, int | None], Form(description="With column-ids: the number of each column, null where it is not known")
]


class _JsonTransaction(TypedDict):
    position: Position
    xid: Xid
    committed_at: Timestamp


class _JsonTable(TypedDict):
    schema: str
    table: str


class _OfRow(_JsonTable):
    columns: NotRequired[ColumnIds]
    key: Key


class _WithoutRow(TypedDict):
    key: None
    before: None
    after: None


class JsonRead(_OfRow):
    """A row that a snapshot copied."""

    position: None
    operation: Literal["READ"]
    before: None
    after: Row
    snapshot: Snapshot


class JsonInsert(_OfRow, _JsonTransaction):
    """A row that was inserted."""

    operation: Literal["INSERT"]
    before: None
    after: Row


class JsonUpdate(_OfRow, _JsonTransaction):
    """A row that was updated: ``before`` is the old row, as far as the replica identity sends it."""

    operation: Literal["UPDATE"]
    before: Row | None
    after: Row
    unchanged: NotRequired[Unchanged]


class JsonDelete(_OfRow, _JsonTransaction):
    """A row that was deleted, as far as the replica identity sends it."""

    operation: Literal["DELETE"]
    before: Row
    after: None


class JsonTruncate(_JsonTable, _WithoutRow, _JsonTransaction):
    """A table that was emptied."""

    operation: Literal["TRUNCATE"]
    cascade: NotRequired[Literal[True]]
    restart_identity: NotRequired[Literal[True]]


class JsonRestart(_JsonTable, _WithoutRow):
    """The table is copied again: READ lines of it before this one no longer count."""

    position: None
    operation: Literal["RESTART"]
    snapshot: Snapshot


class _Definition(_WithoutRow, _JsonTransaction):
    operation: Literal["DDL"]


class JsonTableDefinition(_JsonTable, _Definition, TableDefinitionForm):
    """The table is like this from here on; "published": its rows come from here on."""


class JsonTypeDefinition(_JsonTable, _Definition, TypeDefinitionForm):
    """The type of that name is like this from here on: ``labels`` of an enum, ``attributes`` of a composite type."""


class JsonRewrite(_JsonTable, _Definition, RewriteForm):
    """A command rewrote values, without a line for each; ``reason`` is what ``pg_event_trigger_table_rewrite_reason``
    returned, a bit mask."""


class JsonGone(_JsonTable, _Definition, GoneForm):
    """The table was dropped; "unpublished": its rows no longer come."""


class JsonUnknownDefinition(_Definition, UnknownDefinitionForm):
    """The source could not determine the command's effect."""

    schema: None
    table: None


class JsonBorder(TypedDict):
    """Begin or commit of a transaction, with ``transactions``."""

    operation: Literal["BEGIN", "COMMIT"]
    xid: Xid
    commit_lsn: Lsn
    committed_at: Timestamp


JsonDefinition = JsonTableDefinition | JsonTypeDefinition | JsonRewrite | JsonGone | JsonUnknownDefinition
JsonLine = JsonRead | JsonInsert | JsonUpdate | JsonDelete | JsonTruncate | JsonRestart | JsonDefinition | JsonBorder
