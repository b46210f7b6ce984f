"""A definition's fields in a line: a whole definition, so that readers need no memory."""

from __future__ import annotations

from typing import assert_never

from pgsluice.shared.wire.definition import (
    DefinedColumn,
    DefinitionUnknown,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
)
from pgsluice.shared.wire.published_definition import Defined, PublishedDefinition, concerned
from pgsluice.worker.sinks.lines.schemas.definition_forms import (
    DefinedAttributeForm,
    DefinedColumnForm,
    DefinitionForm,
    GoneForm,
    Previous,
    PreviousTable,
    PreviousType,
    RewriteForm,
    TableDefinitionForm,
    TypeDefinitionForm,
    UnknownDefinitionForm,
)


def concerned_name(definition: PublishedDefinition) -> tuple[str | None, str | None]:
    """Returns schema and name of the table or type; None twice if the source could not provide them."""
    about = concerned(definition.event)
    return (None, None) if about is None else (about.schema, about.name)


def definition_fields(definition: PublishedDefinition) -> DefinitionForm:
    event, previous = definition.event, _previous(definition.previous)
    match event:
        case TableDefined(tag, table):
            return TableDefinitionForm(kind="table", tag=tag, columns=_columns(table), previous=previous)
        case TablePublished(tag, table):
            return TableDefinitionForm(kind="published", tag=tag, columns=_columns(table), previous=previous)
        case TypeDefined(tag) if event.attributes is None:
            return TypeDefinitionForm(kind="type", tag=tag, labels=_labels(event), previous=previous)
        case TypeDefined(tag):
            attributes = _attributes(event)
            return TypeDefinitionForm(kind="type", tag=tag, labels=_labels(event), attributes=attributes, previous=previous)
        case TableRewritten(tag, reason=reason):
            return RewriteForm(kind="rewrite", tag=tag, reason=reason, previous=previous)
        case TableGone(tag):
            return GoneForm(kind="gone", tag=tag, previous=previous)
        case TableUnpublished(tag):
            return GoneForm(kind="unpublished", tag=tag, previous=previous)
        case DefinitionUnknown(tag, sqlstate):
            return UnknownDefinitionForm(kind="unknown", tag=tag, sqlstate=sqlstate)
        case unreachable:
            assert_never(unreachable)


def _previous(defined: Defined | None) -> Previous:
    if defined is None:
        return None
    # a single kind: the previous definition is a table or a type, and nothing else
    if isinstance(defined, TableDefinition):
        return PreviousTable(schema=defined.schema, name=defined.name, columns=_columns(defined))
    was = PreviousType(schema=defined.schema, name=defined.name, labels=_labels(defined))
    if defined.attributes is not None:
        was["attributes"] = _attributes(defined)
    return was


def _labels(defined: TypeDefined) -> list[str]:
    return [label.label for label in defined.labels]


def _attributes(defined: TypeDefined) -> list[DefinedAttributeForm]:
    return [{"number": each.number, "name": each.name, "type": each.type_name} for each in defined.attributes or ()]


def _columns(table: TableDefinition) -> list[DefinedColumnForm]:
    return [_column(column) for column in table.columns if column.is_published]


def _column(column: DefinedColumn) -> DefinedColumnForm:
    return {
        "number": column.number,
        "name": column.name,
        "type": column.type_name,
        "not_null": column.not_null,
        "primary_key_position": column.primary_key_position,
    }
