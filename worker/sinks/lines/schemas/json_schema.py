"""The JSON Schema (2020-12) of a declared format."""

from __future__ import annotations

from types import NoneType
from typing import Any, assert_never

from pgsluice.worker.sinks.lines.schemas.declared_formats import DeclaredFormat
from pgsluice.worker.sinks.lines.schemas.hints import (
    ByName,
    Formed,
    Many,
    Named,
    Scalar,
    Texts,
    UnionHint,
    description_of,
    fields_of,
    taken_apart,
)

Schema = dict[str, Any]

_SCALARS = {bool: "boolean", int: "integer", str: "string", NoneType: "null"}


def json_schema(declared: DeclaredFormat) -> Schema:
    """A line fits exactly one of its kinds, and has no field that its kind does not name."""
    definitions: dict[str, Schema] = {}
    reserved = {field.name for kind in declared.kinds for field in fields_of(kind)}
    for kind in declared.kinds:
        _define(kind, definitions, reserved if kind in declared.open_kinds else None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:pgsluice:schema:{declared.stem}",
        "title": declared.line_type,
        "description": declared.description,
        "oneOf": [_reference(kind) for kind in declared.kinds],
        "$defs": dict(sorted(definitions.items())),
    }


def _define(kind: type, definitions: dict[str, Schema], reserved: set[str] | None = None) -> None:
    """Adds ``kind`` and the types that it refers to. ``reserved`` are names that no column has if columns are next to
    the fields."""
    if kind.__name__ in definitions:
        return
    made: Schema = {"type": "object"}
    definitions[kind.__name__] = made
    fields = list(fields_of(kind))
    properties = {field.name: _schema(field.hint, definitions) for field in fields}
    if reserved is not None:
        properties |= dict.fromkeys(sorted(reserved - properties.keys()), False)
    made |= {
        "description": description_of(kind),
        "properties": properties,
        "required": [field.name for field in fields if field.is_required],
        "additionalProperties": reserved is not None,
    }


def _reference(kind: type) -> Schema:
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _schema(hint: Any, definitions: dict[str, Schema]) -> Any:
    match taken_apart(hint):
        case Scalar(type=kind):
            return True if kind is object else {"type": _SCALARS[kind]}
        case Texts(allowed=allowed):
            return {"const": allowed[0]} if len(allowed) == 1 else {"enum": list(allowed)}
        case Many(of=inner):
            return {"type": "array", "items": _schema(inner, definitions)}
        case ByName(of=inner):
            values = _schema(inner, definitions)
            return {"type": "object"} if values is True else {"type": "object", "additionalProperties": values}
        case Formed(of=inner, form=form):
            said = {"pattern": form.pattern, "description": form.description}
            return _schema(inner, definitions) | {key: text for key, text in said.items() if text}
        case Named(type=kind):
            _define(kind, definitions)
            return _reference(kind)
        case UnionHint(members=members):
            return _union([_schema(member, definitions) for member in members])
        case unreachable:
            assert_never(unreachable)


def _union(schemas: list[Schema]) -> Schema:
    """Joins schemas; ``null`` with one other type becomes a second type of it."""
    if len(schemas) == 2 and schemas[1] == {"type": "null"} and "type" in schemas[0]:
        return schemas[0] | {"type": [schemas[0]["type"], "null"]}
    return {"anyOf": schemas}
