"""A declared format as types of TypeScript."""

from __future__ import annotations

import json
from collections.abc import Iterator
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

_SCALARS = {bool: "boolean", int: "number", str: "string", NoneType: "null", object: "Value"}

_HEAD = """\
// {description}. Made of the declarations in worker/sinks/lines/schemas.
// JSON.parse rounds numbers beyond 2^53 and decimals: take a parser that keeps their digits where they count.

export type Value = null | boolean | number | string | Value[] | {{ [name: string]: Value }};
"""


def typescript(declared: DeclaredFormat) -> str:
    made: dict[str, str] = {}
    for kind in declared.kinds:
        _define(kind, made, is_open=kind in declared.open_kinds)
    names = " | ".join(kind.__name__ for kind in declared.kinds)
    return "\n".join(
        [_HEAD.format(description=declared.description), *made.values(), f"export type {declared.line_type} = {names};\n"]
    )


def _define(kind: type, made: dict[str, str], *, is_open: bool = False) -> None:
    """Adds ``kind`` after what it refers to."""
    if kind.__name__ in made:
        return
    body = list(_fields(kind, made))
    if is_open:
        body.append("  /** The columns of the row. */\n  [column: string]: Value | undefined;\n")
    made[kind.__name__] = f"/** {description_of(kind)} */\nexport interface {kind.__name__} {{\n{''.join(body)}}}\n"


def _fields(kind: type, made: dict[str, str]) -> Iterator[str]:
    for field in fields_of(kind):
        hint = taken_apart(field.hint)
        # a single kind: the others have no description, and need none
        if isinstance(hint, Formed) and hint.form.description:
            yield f"  /** {hint.form.description} */\n"
        yield f"  {field.name}{'' if field.is_required else '?'}: {_type(field.hint, made)};\n"


def _type(hint: Any, made: dict[str, str]) -> str:
    match taken_apart(hint):
        case Scalar(type=kind):
            return _SCALARS[kind]
        case Texts(allowed=allowed):
            return " | ".join(map(json.dumps, allowed))
        case Many(of=inner):
            return f"{_type(inner, made)}[]"
        case ByName(of=inner):
            return f"{{ [name: string]: {_type(inner, made)} }}"
        case Formed(of=inner):
            return _type(inner, made)
        case Named(type=kind):
            _define(kind, made)
            return kind.__name__
        case UnionHint(members=members):
            return " | ".join(_type(member, made) for member in members)
        case unreachable:
            assert_never(unreachable)
