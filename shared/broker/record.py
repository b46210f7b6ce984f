"""Decodes the records of the state bucket: into the types that their writers use, whatever version wrote them.

A record is a dataclass; its value in the bucket is a JSON object of the same fields. Fields that a type does not name
are ignored, so that a process of a newer version stops none of an older one; a field that has a default may be missing,
as in what an older version wrote. Anything else that is not of the type is refused with one sentence that names the
key.
"""

from __future__ import annotations

import base64
import enum
import functools
import types
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.position import parse_lsn

LsnText = Annotated[str, parse_lsn]
"""An LSN as PostgreSQL writes it; "" if there is none yet."""
TimeText = Annotated[str, datetime.fromisoformat]
"""A time as RFC 3339; "" if there is none yet."""

USE_THAT_VERSION = "a newer pgsluice or another program wrote it; use that version, or run 'pgsluice drop' and start again"


MOST_UNPACKED_BYTES = 256 * 1024**2
"""Ten times what a hundred thousand columns take. What is packed may be a thousandth of it."""


class Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=Record)


class MalformedError(ValueError):
    """Describes the error in a record, without its key. ``StateBucket`` makes a TerminalError of it."""


def encode(record: Record | Mapping[str, Any]) -> bytes:
    return orjson.dumps(record)


def decode(record: type[R], value: bytes) -> R:
    """Raises MalformedError for what is not JSON, not an object, or does not hold the fields of ``record``."""
    try:
        content = orjson.loads(value)
    except orjson.JSONDecodeError:
        raise MalformedError("it is not JSON") from None
    return of_fields(record, content)


def of_fields(record: type[R], content: object, path: str = "") -> R:
    """``content`` is what JSON made of the record, or of a part of it at ``path``."""
    if not isinstance(content, dict):
        raise MalformedError(f"{path or 'it'} is not a JSON object")
    found = {}
    for name, (kind, is_required) in _field_types(record).items():
        if name in content:
            found[name] = _of_type(kind, content[name], f"{path}{'.' if path else ''}{name}")
        elif is_required:
            raise MalformedError(f"{path}{'.' if path else ''}{name} is missing")
    return record(**found)


def pack(content: object) -> str:
    """Compresses ``content``: a hundred thousand columns fit into one message of a server with the usual limits."""
    return base64.b64encode(zlib.compress(orjson.dumps(content))).decode()


def unpack(packed: str) -> Any:
    """Raises MalformedError for what ``pack`` does not make, and for more than MOST_UNPACKED_BYTES."""
    inflating = zlib.decompressobj()
    try:
        content = inflating.decompress(base64.b64decode(packed), MOST_UNPACKED_BYTES)
        if inflating.eof:
            return orjson.loads(content)
    except (ValueError, zlib.error):
        content = b""
    if len(content) == MOST_UNPACKED_BYTES:
        raise MalformedError(f"its content has more than {MOST_UNPACKED_BYTES} bytes")
    raise MalformedError("its content is not compressed JSON")


def malformed(key: str, bucket: str, reason: object, remedy: str = USE_THAT_VERSION) -> TerminalError:
    """Returns the sentence about a record that cannot be read; ``bucket`` as a sentence names it."""
    return TerminalError(f"record {key} of {bucket} is malformed: {reason}", remedy)


@functools.cache
def _field_types(record: type[Record]) -> dict[str, tuple[Any, bool]]:
    """Returns each field's type, and whether it must be there."""
    hints = get_type_hints(record, include_extras=True)
    return {each.name: (hints[each.name], each.default is MISSING and each.default_factory is MISSING) for each in fields(record)}


def _of_type(kind: Any, value: object, path: str) -> Any:
    """Converts ``value``, a value of JSON, to the type ``kind``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        text = _of_type(arguments[0], value, path)
        if text:
            _known(arguments[1], text, path)
        return text
    if origin in (Union, types.UnionType):
        [other] = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _of_type(other, value, path)
    if origin is tuple and isinstance(value, list):
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            return tuple(_of_type(each, item, f"{path}[{i}]") for i, (each, item) in enumerate(zip(kinds, value, strict=True)))
    if kind is object:
        return value
    if origin is Mapping and isinstance(value, dict):
        return {name: _of_type(arguments[1], item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return of_fields(kind, value, path)
    if isinstance(kind, enum.EnumMeta):
        return _known(kind, value, path)
    if type(value) is kind:
        return value
    raise MalformedError(f"{path} is not of type {getattr(kind, '__name__', kind)}")


def _known(kind: Callable[[Any], Any], value: object, path: str) -> Any:
    """Returns ``kind(value)``; raises MalformedError if ``kind`` refuses it."""
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise MalformedError(f"{path} has a value that is not known") from None
