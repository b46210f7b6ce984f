"""JSON of requests into dataclasses, strictly, and dataclasses as JSON Schema: one description for both.

What is taken: str, int, float, bool, None in a union, enums of texts, tuples of one kind, mappings from text, dataclasses, and
``Json`` for anything. A field with a default may be left out; a name that is no field is refused, since it is a misspelt one.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pgsluice.console.server.problem import Problem, ProblemKind

T = TypeVar("T")

Json = object
"""Any JSON value."""

_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LARGEST = 2**63 - 1


def parse(kind: type[T], content: object, where: str = "") -> T:
    """Converts ``content``, a value of JSON, to the type ``kind``. Raises Problem (422) that names the place of a wrong value."""
    made: T = _value(kind, content, where)
    return made


def parse_query(kind: type[T], parameters: Mapping[str, str]) -> T:
    """Parses a URL's parameters: numbers and switches are texts there, and tuples have commas."""
    hints = _hints(kind)
    content = {name: _of_text(hints[name], text, name) if name in hints else text for name, text in parameters.items()}
    return parse(kind, content)


def schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a kind. Dataclasses and enums are put into ``definitions`` and named by
    reference."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Json:
        return {}
    if origin is Annotated:
        return schema(arguments[0], definitions)
    if hasattr(kind, "__supertype__"):  # typing.NewType
        return schema(kind.__supertype__, definitions)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema(argument, definitions) for argument in arguments]}
    if kind is type(None):
        return {"type": "null"}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema(arguments[0], definitions)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema(arguments[1], definitions)}
    if is_dataclass(kind) or isinstance(kind, enum.EnumMeta):
        return _named(kind, definitions)
    if kind is datetime:
        return {"type": "string", "format": "date-time"}
    if kind is int:
        return {"type": "integer", "minimum": -_LARGEST, "maximum": _LARGEST}
    return {"type": _SCALARS[kind]}


def _named(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # so that one that holds itself ends
        definitions[name] |= _enum_schema(kind) if isinstance(kind, enum.EnumMeta) else _object_schema(kind, definitions)
    return {"$ref": f"#/components/schemas/{name}"}


def _enum_schema(kind: Any) -> dict[str, Any]:
    return {"type": "string", "enum": [member.value for member in kind]}


def _object_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = _hints(kind)
    return {
        "type": "object",
        "properties": {name: schema(hint, definitions) for name, hint in hints.items()},
        "required": sorted(_required(kind)),
        "additionalProperties": False,
    }


def _hints(kind: Any) -> dict[str, Any]:
    return _cached_hints(kind)


@functools.cache
def _cached_hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


@functools.cache
def _required(kind: Any) -> frozenset[str]:
    return frozenset(each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING)


def _value(kind: Any, content: object, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Json:
        return content
    if origin is Annotated:
        return _value(arguments[0], content, where)
    if origin in (Union, types.UnionType):
        [other] = [argument for argument in arguments if argument is not type(None)]
        return None if content is None else _value(other, content, where)
    if origin is tuple and isinstance(content, list):
        return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(content))
    if origin is not None and issubclass(origin, Mapping) and isinstance(content, dict):
        return {name: _value(arguments[1], item, _below(where, name)) for name, item in content.items()}
    if is_dataclass(kind):
        return _object(kind, content, where)
    if isinstance(kind, enum.EnumMeta):
        return _member(kind, content, where)
    if kind is float and type(content) is int:
        return float(content)
    if type(content) is not kind or (kind is int and abs(content) > _LARGEST):  # type: ignore[arg-type]
        raise _malformed(where, f"is not {_spoken(kind)}")
    return content


def _object(kind: Any, content: object, where: str) -> Any:
    if not isinstance(content, dict):
        raise _malformed(where, "is not a JSON object")
    hints = _hints(kind)
    unknown = sorted(content.keys() - hints.keys())
    if unknown:
        raise _malformed(_below(where, unknown[0]), "is not known", f"known are {', '.join(hints)}" if hints else "remove it")
    missing = sorted(_required(kind) - content.keys())
    if missing:
        raise _malformed(_below(where, missing[0]), "is missing")
    return kind(**{name: _value(hints[name], item, _below(where, name)) for name, item in content.items()})


def _member(kind: Any, content: object, where: str) -> Any:
    choices = [member.value for member in kind]
    if content not in choices:
        raise _malformed(where, f"is not one of {', '.join(choices)}")
    return kind(content)


def _of_text(kind: Any, text: str, name: str) -> object:
    """Returns the JSON value of a text; an invalid text stays one, and is refused later."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        [other] = [argument for argument in arguments if argument is not type(None)]
        return _of_text(other, text, name)
    if origin is tuple:
        return [_of_text(arguments[0], item, name) for item in text.split(",") if item]
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    if kind in (int, float):
        try:
            return kind(text) if text.isascii() else text
        except ValueError:
            return text
    return text


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _spoken(kind: Any) -> str:
    spoken = _SCALARS.get(kind, "array" if get_origin(kind) is tuple else "object")
    return f"{'an' if spoken[0] in 'aio' else 'a'} {spoken}"


def _malformed(where: str, detail: str, remedy: str = "see the description of the API at /api/v1/openapi.json") -> Problem:
    return Problem(ProblemKind.MALFORMED, f"{where or 'the body'} {detail}", remedy, where)
