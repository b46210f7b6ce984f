"""A definition in a line, in every format with definitions."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from pgsluice.worker.sinks.lines.schemas.field_forms import Form

Tag = Annotated[str, Form(description="The command's tag, like ALTER TABLE")]


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
"""None where that is not known."""


class TableDefinitionForm(TypedDict):
    """The table is like this from here on; "published": its rows come from here on."""

    kind: Literal["table", "published"]
    tag: Tag
    columns: list[DefinedColumnForm]
    previous: Previous


class TypeDefinitionForm(TypedDict):
    """The type is like this from here on: ``labels`` of an enum, ``attributes`` of a composite type."""

    kind: Literal["type"]
    tag: Tag
    labels: list[str]
    attributes: NotRequired[list[DefinedAttributeForm]]
    previous: Previous


class RewriteForm(TypedDict):
    """A command rewrote values, without a line for each; ``reason`` is what ``pg_event_trigger_table_rewrite_reason``
    returned, a bit mask."""

    kind: Literal["rewrite"]
    tag: Tag
    reason: int
    previous: Previous


class GoneForm(TypedDict):
    """The table was dropped; "unpublished": its rows no longer come."""

    kind: Literal["gone", "unpublished"]
    tag: Tag
    previous: Previous


class UnknownDefinitionForm(TypedDict):
    """The source could not determine the command's effect."""

    kind: Literal["unknown"]
    tag: Tag
    sqlstate: str


DefinitionForm = TableDefinitionForm | TypeDefinitionForm | RewriteForm | GoneForm | UnknownDefinitionForm
