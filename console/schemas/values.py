"""Values of YAML files as JSON Schema (2020-12).

The readers take a scalar's characters, so ``port: 5432`` and ``port: "5432"`` are the same; an editor sees a number and a text.
A key without a value is absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

Schema = dict[str, Any]

SCALAR: Schema = {"type": ["string", "number", "boolean"]}
NULL: Schema = {"type": "null"}
TEXTS: Schema = {"type": ["array", "null"], "items": SCALAR}
SWITCH: Schema = {
    "anyOf": [
        {"type": ["boolean", "null"]},
        {"enum": [0, 1]},
        {"type": "string", "pattern": "^([Tt](rue|RUE)?|[Yy](es|ES)|[Oo](n|N)|1|[Ff](alse|ALSE)?|[Nn](o|O)|[Oo](ff|FF)|0)$"},
    ]
}
DURATION: Schema = {
    "anyOf": [
        {"const": 0},
        {"type": "string", "pattern": "^(?=.)([0-9]+[dD])?([0-9]+[hH])?([0-9]+[mM])?([0-9]+(\\.[0-9]+)?[sS])?$|^0$"},
    ]
}


def described(schema: Schema, text: str) -> Schema:
    return {"description": text, **schema}


def optional(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def whole_number(least: int = 0, most: int | None = None) -> Schema:
    bounds = {"minimum": least} | ({} if most is None else {"maximum": most})
    return {"anyOf": [{"type": "integer", **bounds}, {"type": "string", "pattern": "^[0-9]+$"}]}


def words(choices: Collection[object]) -> Schema:
    return {"enum": list(choices)}


def list_of(items: Schema, *, least: int = 0) -> Schema:
    return {"type": "array", "items": items} | ({"minItems": least} if least else {})


def by_name(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def mapping(keys: Collection[str], properties: Mapping[str, Schema], *, required: Collection[str] = ()) -> Schema:
    """Returns a mapping's schema, without other keys. Raises ValueError unless ``properties`` describe the reader's ``keys``."""
    if unlike := set(keys) ^ properties.keys():
        raise ValueError(f"described or read, but not both: {', '.join(sorted(unlike))}")
    needed = {"required": sorted(required)} if required else {}
    return {"type": "object", "properties": {key: properties[key] for key in keys}, **needed, "additionalProperties": False}


def document(name: str, title: str, description: str, schema: Schema) -> Schema:
    """Returns a whole schema file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:pgsluice:schema:{name}",
        "title": title,
        "description": description,
        **schema,
    }
