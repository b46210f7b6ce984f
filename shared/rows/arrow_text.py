"""Postgres's text of single values as Arrow arrays, and Arrow arrays as that text: one table of types, read both ways.

boolean                    ↔ bool                   smallint, integer, bigint ↔ int16, int32, int64 (oid → int64)
real, double precision     ↔ float, double          date ↔ date32
timestamp with time zone   ↔ timestamp[us, UTC]     timestamp without ↔ timestamp[us]
numeric(p, s), p ≤ 38      ↔ decimal128(p, s)       bytea ↔ binary
everything else            → string, the server's text: numeric without precision has every digit of it
string → text · time64[us] → time · int8, uint8 → smallint · uint16 → integer · uint32 → bigint
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.shared.wire.table import Column

MOST_DIGITS = 38

_NUMERIC = 1700
_TYPMOD_OFFSET = 4  # numeric.c: precision and scale, the latter signed with 11 bits, above it
_BOOLEANS = {b"t": True, b"f": False, None: None}
_FLOATS = {b"nan": b"NaN", b"inf": b"Infinity", b"-inf": b"-Infinity"}
_SCALARS: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid: unsigned
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}


class PostgresType(NamedTuple):
    """``name`` and ``typmod`` as a column's."""

    oid: int
    name: str
    typmod: int = -1


_POSTGRES: dict[pa.DataType, PostgresType] = {
    pa.bool_(): PostgresType(16, "boolean"),
    pa.int8(): PostgresType(21, "smallint"),
    pa.int16(): PostgresType(21, "smallint"),
    pa.uint8(): PostgresType(21, "smallint"),
    pa.int32(): PostgresType(23, "integer"),
    pa.uint16(): PostgresType(23, "integer"),
    pa.int64(): PostgresType(20, "bigint"),
    pa.uint32(): PostgresType(20, "bigint"),
    pa.float32(): PostgresType(700, "real"),
    pa.float64(): PostgresType(701, "double precision"),
    pa.string(): PostgresType(25, "text"),
    pa.large_string(): PostgresType(25, "text"),
    pa.binary(): PostgresType(17, "bytea"),
    pa.large_binary(): PostgresType(17, "bytea"),
    pa.date32(): PostgresType(1082, "date"),
    pa.time64("us"): PostgresType(1083, "time without time zone"),
}


_NAMED = {
    **{kind.name: kind for kind in _POSTGRES.values()},
    "timestamp with time zone": PostgresType(1184, "timestamp with time zone"),
    "timestamptz": PostgresType(1184, "timestamp with time zone"),
    "timestamp": PostgresType(1114, "timestamp without time zone"),
    "numeric": PostgresType(_NUMERIC, "numeric"),
}
_NUMERIC_NAME = re.compile(r"numeric\((\d+)(?:, ?(\d+))?\)")


def named_type(name: str) -> PostgresType:
    """Returns the type of a name as users write it. Raises ValueError with the end of a sentence that begins with it."""
    match = _NUMERIC_NAME.fullmatch(name)
    if match is not None and 0 <= int(match[2] or 0) <= int(match[1]) <= 1000:
        precision, scale = int(match[1]), int(match[2] or 0)
        return PostgresType(_NUMERIC, f"numeric({precision},{scale})", (precision << 16 | scale) + _TYPMOD_OFFSET)
    if name not in _NAMED:
        raise ValueError(f"is not known here ({', '.join(_NAMED)}; use text for any other)")
    return _NAMED[name]


def numeric_size(oid: int, typmod: int) -> tuple[int, int] | None:
    """Returns precision and scale of a numeric column that Arrow's decimal holds; None for any other column."""
    if oid != _NUMERIC or typmod < _TYPMOD_OFFSET:
        return None
    size = typmod - _TYPMOD_OFFSET
    precision, scale = size >> 16 & 0xFFFF, ((size & 0x7FF) ^ 1024) - 1024
    return (precision, scale) if precision <= MOST_DIGITS and 0 <= scale <= precision else None


def arrow_type(column: Column) -> pa.DataType:
    size = numeric_size(column.type_oid, column.typmod)
    return pa.decimal128(*size) if size else _SCALARS.get(column.type_oid, pa.string())


def postgres_type(kind: pa.DataType) -> PostgresType | None:
    """Returns None for a type without a column type: nested ones, durations, decimals of more digits than 38 or a
    negative scale."""
    if pa.types.is_timestamp(kind):
        return PostgresType(1184, "timestamp with time zone") if kind.tz else PostgresType(1114, "timestamp without time zone")
    if pa.types.is_decimal(kind):
        if kind.precision > MOST_DIGITS or not 0 <= kind.scale <= kind.precision:
            return None
        typmod = (kind.precision << 16 | kind.scale) + _TYPMOD_OFFSET
        return PostgresType(_NUMERIC, f"numeric({kind.precision},{kind.scale})", typmod)
    return _POSTGRES.get(kind)


def arrow_values(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Returns the values of texts as the server writes them, in UTC. Raises ValueError for a value that the type lacks:
    NaN in a decimal, infinity and the years before 1 and after 9999 in a time."""
    if pa.types.is_boolean(kind):
        return pa.array([_boolean(value) for value in values], kind)
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else _bytes(value) for value in values], kind)
    texts = pa.array(values, pa.binary()).cast(pa.string())
    return texts if pa.types.is_string(kind) else texts.cast(kind)


def postgres_texts(values: pa.Array) -> list[bytes | None]:
    """Returns the texts of an array whose type ``postgres_type`` knows. Raises ValueError for a value that Postgres
    does not have: a character of code 0, a part of a microsecond."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return [None if value is None else b"t" if value else b"f" for value in values.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if value is None else b"\\x" + value.hex().encode() for value in values.to_pylist()]
    if pa.types.is_timestamp(kind):
        return _times(values.cast(pa.timestamp("us", kind.tz)).cast(pa.timestamp("us")), b"+00" if kind.tz else b"")
    if pa.types.is_date(kind):
        return _times(values, b"")
    texts: list[bytes | None] = values.cast(pa.string()).cast(pa.binary()).to_pylist()
    if pa.types.is_floating(kind):
        return [None if text is None else _FLOATS.get(text, text) for text in texts]
    if pa.types.is_decimal(kind):
        return _each(texts, _plain_digits)
    if pa.types.is_time(kind):
        return _each(texts, _short_fraction)
    if any(text is not None and b"\0" in text for text in texts):
        raise ValueError("has a character of code 0")
    return texts


def _times(values: pa.Array, zone: bytes) -> list[bytes | None]:
    years = pc.year(values)
    if pc.any(pc.or_(pc.less(years, 1), pc.greater(years, 9999))).as_py():
        raise ValueError("is a time before the year 1 or after 9999")
    texts: list[bytes | None] = values.cast(pa.string()).cast(pa.binary()).to_pylist()
    return _each(texts, lambda text: _short_fraction(text) + zone)


def _each(texts: Sequence[bytes | None], change: Callable[[bytes], bytes]) -> list[bytes | None]:
    return [None if text is None else change(text) for text in texts]


_ZEROS = re.compile(rb"\.?0*$")


def _short_fraction(text: bytes) -> bytes:
    """Returns the number as the server writes it: without zeros at the end."""
    return _ZEROS.sub(b"", text) if b"." in text else text


def _plain_digits(text: bytes) -> bytes:
    return f"{Decimal(text.decode()):f}".encode() if b"E" in text else text


def _boolean(text: bytes | None) -> bool | None:
    try:
        return _BOOLEANS[text]
    except KeyError:
        raise ValueError("is not a boolean") from None


def _bytes(text: bytes) -> bytes:
    if not text.startswith(b"\\x"):
        raise ValueError("is not a bytea")
    return unhexlify(text[2:])
