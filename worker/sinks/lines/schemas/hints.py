"""Types as the declarations write them, taken apart for generators of other languages."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from pgsluice.worker.sinks.lines.schemas.field_forms import Form


class FieldHint(NamedTuple):
    name: str
    hint: Any
    is_required: bool


class Texts(NamedTuple):
    """A literal's texts, or true and false."""

    allowed: tuple[str | bool, ...]


class Many(NamedTuple):
    of: Any


class ByName(NamedTuple):
    of: Any


class UnionHint(NamedTuple):
    members: tuple[Any, ...]


class Formed(NamedTuple):
    of: Any
    form: Form


class Scalar(NamedTuple):
    """``type`` is bool, int, str, NoneType, or object for any value."""

    type: type


class Named(NamedTuple):
    """A TypedDict."""

    type: type


Hint = Texts | Many | ByName | UnionHint | Formed | Scalar | Named


def fields_of(declared: type) -> Iterator[FieldHint]:
    for name, hint in get_type_hints(declared, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired
        yield FieldHint(name, get_args(hint)[0] if is_optional else hint, not is_optional)


def description_of(declared: type) -> str:
    """Returns the docstring on one line, without the marks of code."""
    return " ".join((declared.__doc__ or "").split()).replace("``", "")


def taken_apart(hint: Any) -> Hint:
    """Raises TypeError for what no declaration needs."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Formed(arguments[0], arguments[1])
    if origin is Literal:
        return Texts(arguments)
    if origin is list:
        return Many(arguments[0])
    if origin is dict:
        return ByName(arguments[1])
    if origin in (Union, UnionType):
        return UnionHint(arguments)
    if is_typeddict(hint):
        return Named(hint)
    if hint is Any:
        return Scalar(object)
    if hint in (bool, int, str, NoneType):
        return Scalar(hint)
    raise TypeError(f"no other language has {hint}")
