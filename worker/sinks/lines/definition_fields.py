"""What a line says of a definition: a whole one, so that whoever reads it needs to remember nothing."""

from __future__ import annotations

from typing import Any, assert_never

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
from pgsluice.shared.wire.published_definition import Defined, PublishedDefinition, concerned, kind_of


def concerned_name(definition: PublishedDefinition) -> tuple[str | None, str | None]:
    """Schema and name of the table or type; None twice where the source could not tell."""
    about = concerned(definition.event)
    return (None, None) if about is None else (about.schema, about.name)


def definition_fields(definition: PublishedDefinition) -> dict[str, Any]:
    """``kind`` and ``tag`` (of the command) always; ``columns`` of a table in their order, ``labels`` of an enum, ``attributes``
    of a composite type, ``reason`` of a rewrite, ``sqlstate`` of what could not be told; ``previous`` is the same of what was
    there before, null where that is not known."""
    event = definition.event
    fields: dict[str, Any] = {"kind": kind_of(event), "tag": event.tag}
    match event:
        case TableDefined(table=table) | TablePublished(table=table):
            fields |= _table_fields(table)
        case TypeDefined():
            fields |= _type_fields(event)
        case TableRewritten(reason=reason):
            fields |= {"reason": reason}
        case DefinitionUnknown(sqlstate=sqlstate):
            return fields | {"sqlstate": sqlstate}
        case TableGone() | TableUnpublished():
            pass
        case unreachable:
            assert_never(unreachable)
    return fields | {"previous": None if definition.previous is None else _defined_fields(definition.previous)}


def _defined_fields(defined: Defined) -> dict[str, Any]:
    named = {"schema": defined.schema, "name": defined.name}
    # one kind alone: what was there before is a table or a type, and nothing else
    if isinstance(defined, TableDefinition):
        return named | _table_fields(defined)
    return named | _type_fields(defined)


def _type_fields(defined: TypeDefined) -> dict[str, Any]:
    fields: dict[str, Any] = {"labels": [label.label for label in defined.labels]}
    if defined.attributes is not None:
        fields["attributes"] = [{"number": each.number, "name": each.name, "type": each.type_name} for each in defined.attributes]
    return fields


def _table_fields(table: TableDefinition) -> dict[str, Any]:
    return {"columns": [_column_fields(column) for column in table.columns if column.is_published]}


def _column_fields(column: DefinedColumn) -> dict[str, Any]:
    return {
        "number": column.number,
        "name": column.name,
        "type": column.type_name,
        "not_null": column.not_null,
        "primary_key_position": column.primary_key_position,
    }
