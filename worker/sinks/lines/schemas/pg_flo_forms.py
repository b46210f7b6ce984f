"""The lines of ``format: pg-flo``, as ``worker.sinks.lines.pg_flo_lines`` writes them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from pgsluice.worker.sinks.lines.schemas import field_forms
from pgsluice.worker.sinks.lines.schemas.definition_forms import DefinitionForm
from pgsluice.worker.sinks.lines.schemas.field_forms import Form, Row

SnapshotLsn = Annotated[field_forms.Lsn | None, Form(description="The snapshot's LSN")]


class PgFloKey(TypedDict):
    """The key of a row; the type is empty if there is none."""

    Type: Literal["PRIMARY KEY", "UNIQUE", "FULL", ""]
    Columns: list[str]


class _PgFloTable(TypedDict):
    Schema: str
    Table: str
    ReplicationKey: PgFloKey


class _PgFloTransaction(TypedDict):
    LSN: field_forms.Lsn
    EmittedAt: field_forms.Timestamp
    Position: field_forms.Position


class _OfCopy(TypedDict):
    LSN: SnapshotLsn
    EmittedAt: None
    Position: None


class PgFloCopied(_PgFloTable, _OfCopy):
    """A row that a snapshot copied."""

    Type: Literal["INSERT"]
    NewTuple: Row


class PgFloInsert(_PgFloTable, _PgFloTransaction):
    """A row that was inserted."""

    Type: Literal["INSERT"]
    NewTuple: Row


class PgFloUpdate(_PgFloTable, _PgFloTransaction):
    """A row that was updated: ``OldTuple`` is the old row, as far as it was sent."""

    Type: Literal["UPDATE"]
    NewTuple: Row
    OldTuple: NotRequired[Row]
    Unchanged: NotRequired[field_forms.Unchanged]


class PgFloDelete(_PgFloTable, _PgFloTransaction):
    """A row that was deleted, as far as it was sent."""

    Type: Literal["DELETE"]
    OldTuple: Row


class PgFloTruncate(_PgFloTable, _PgFloTransaction):
    """A table that was emptied."""

    Type: Literal["TRUNCATE"]


class PgFloRestart(_PgFloTable, _OfCopy):
    """The table is copied again: what was copied of it before no longer counts."""

    Type: Literal["RESTART"]


class PgFloDefinition(_PgFloTransaction):
    """A table or a type was altered; ``Schema`` and ``Table`` are null if the source could not determine it."""

    Type: Literal["DDL"]
    Schema: str | None
    Table: str | None
    NewTuple: DefinitionForm


PgFloLine = PgFloCopied | PgFloInsert | PgFloUpdate | PgFloDelete | PgFloTruncate | PgFloRestart | PgFloDefinition
