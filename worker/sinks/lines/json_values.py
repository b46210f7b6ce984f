"""Postgres text as JSON text, a column at a time.

Most columns need no work per value: numbers are JSON as they are, and text without anything to escape stands between quotes. So
a column is looked at as a whole first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.table import Column, Table

NULL = b"null"


class JsonColumn(NamedTuple):
    """The JSON of each value is ``quote + text + quote``."""

    texts: Sequence[bytes]
    quote: bytes

    def whole(self) -> Iterable[bytes]:
        """Each text with its quotes."""
        return (b'"%b"' % text for text in self.texts) if self.quote else self.texts


Kinds = Mapping[int, Callable[[Sequence[bytes]], JsonColumn]]
"""What makes JSON of a type's values, by type OID (pg_type.dat); ``strings`` does for those that are not named. Raises ValueError
or KeyError for a value that is not of the type."""


def json_column(table: Table, column: Column, values: Sequence[bytes], kinds: Kinds) -> JsonColumn:
    """``values`` are of ``column``, without NULL and UNCHANGED. Raises WireError for one that is not of the column's type."""
    try:
        return kinds.get(column.type_oid, strings)(values)
    except UnicodeDecodeError:
        raise WireError(
            f"a value of {table.qualified_name}.{column.name} is not UTF-8",
            "a source database with encoding SQL_ASCII does not check its text: correct the row, or move to UTF8",
        ) from None
    except (KeyError, ValueError):
        raise WireError(f"a value of {table.qualified_name}.{column.name} is not of its type {column.type_name}") from None


_BOOLEANS = {b"t": b"true", b"f": b"false"}
_LINE_BREAKS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")  # raw ones stand only between JSON tokens: strings must escape them
_ESCAPED = b'"\\' + bytes(range(0x20))
_LAST_DIGIT = ord("9")  # every number ends in a digit; NaN and Infinity end in letters, which come after


def integers(values: Sequence[bytes]) -> JsonColumn:
    if b"".join(values).translate(None, b"-0123456789") or b"" in values:
        raise ValueError("not an integer")
    return JsonColumn(values, b"")


def numbers(values: Sequence[bytes]) -> JsonColumn:
    if b"" in values:
        raise ValueError("not a number")
    if not b"".join(values).translate(None, b"+-.0123456789e"):
        return JsonColumn(values, b"")
    return JsonColumn([value if value[-1] <= _LAST_DIGIT else b'"%b"' % value for value in values], b"")


def booleans(values: Sequence[bytes]) -> JsonColumn:
    return JsonColumn([_BOOLEANS[value] for value in values], b"")


def documents(values: Sequence[bytes]) -> JsonColumn:
    _check_utf8(b",".join(values))
    return JsonColumn([value.translate(_LINE_BREAKS_TO_SPACES) for value in values], b"")


def strings(values: Sequence[bytes]) -> JsonColumn:
    joined = b",".join(values)
    _check_utf8(joined)
    if len(joined.translate(None, _ESCAPED)) == len(joined):
        return JsonColumn(values, b'"')
    return JsonColumn([orjson.dumps(value.decode()) for value in values], b"")


def _check_utf8(joined: bytes) -> None:
    """A character that one value begins and the next one ends is none, because of the comma between them."""
    if not joined.isascii():
        joined.decode()


KINDS: Kinds = {
    16: booleans,
    20: integers,  # int8
    21: integers,  # int2
    23: integers,  # int4
    26: integers,  # oid
    114: documents,  # json
    700: numbers,  # float4
    701: numbers,  # float8
    1700: numbers,  # numeric
    3802: documents,  # jsonb
}
"""Those of our own JSON lines."""
