"""What a line says of a definition, in every format that tells definitions."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from pgsluice.worker.sinks.lines.schemas.field_forms import Form

Tag = Annotated[str, Form(description="That of the command, like ALTER TABLE")]


class DefinedColumnForm(TypedDict):
    """A column that rows carry; its number stays when it is renamed."""

    number: int
    name: str
    type: str
    not_null: bool
    primary_key_position: int | None


class DefinedAttributeForm(TypedDict):
    """An attribute of a composite type."""

    number: int
    name: str
    type: str


class PreviousTable(TypedDict):
    """A table as it was before."""

    schema: str
    name: str
    columns: list[DefinedColumnForm]


class PreviousType(TypedDict):
    """A type as it was before."""

    schema: str
    name: str
    labels: list[str]
    attributes: NotRequired[list[DefinedAttributeForm]]


Previous = PreviousTable | PreviousType | None
"""None: not known."""


class TableDefinitionForm(TypedDict):
    """From here on the table is like this; "published": and its rows come."""

    kind: Literal["table", "published"]
    tag: Tag
    columns: list[DefinedColumnForm]
    previous: Previous


class TypeDefinitionForm(TypedDict):
    """From here on the type is like this: ``labels`` of an enum, ``attributes`` of a composite type."""

    kind: Literal["type"]
    tag: Tag
    labels: list[str]
    attributes: NotRequired[list[DefinedAttributeForm]]
    previous: Previous


class RewriteForm(TypedDict):
    """Values changed that no line tells; ``reason`` is PostgreSQL's bit mask of ``pg_event_trigger_table_rewrite_reason``."""

    kind: Literal["rewrite"]
    tag: Tag
    reason: int
    previous: Previous


class GoneForm(TypedDict):
    """The table was dropped; "unpublished": its rows come no more."""

    kind: Literal["gone", "unpublished"]
    tag: Tag
    previous: Previous


class UnknownDefinitionForm(TypedDict):
    """What the command did could not be told."""

    kind: Literal["unknown"]
    tag: Tag
    sqlstate: str


DefinitionForm = TableDefinitionForm | TypeDefinitionForm | RewriteForm | GoneForm | UnknownDefinitionForm
