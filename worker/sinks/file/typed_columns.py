"""Postgres text as Arrow columns.

    int2, int4, int8, oid       int16, int32, int64, int64
    float4, float8, bool        float, double, bool
    numeric(p, s)               decimal128(p, s) up to 38 digits; a string otherwise
    date                        date32
    timestamp, timestamptz      timestamp in microseconds, without a zone and in UTC
    bytea                       binary
    everything else             string, as the server prints it

Some values have no place in their type: NaN in a decimal, infinite dates, years before 1 or after 9999. They are null in the
column, and their text is given beside it.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from shared.errors import WireError
from shared.table import Column

LARGEST_PRECISION = 38  # of decimal128, and the largest that Spark and most databases know

_BOOL = 16
_BYTEA = 17
_NUMERIC = 1700
_ARROW_TYPES: dict[int, pa.DataType] = {
    _BOOL: pa.bool_(),
    _BYTEA: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
"""By type OID (pg_type.dat)."""

_BOOLEANS = {b"t": True, b"f": False, None: None}

_DAY = r"\d{4}-\d{2}-\d{2}"
_TIME = r" \d{2}:\d{2}:\d{2}(\.\d{1,6})?"
_FITTING: dict[int, str] = {
    1082: f"^{_DAY}$",
    1114: f"^{_DAY}{_TIME}$",
    1184: f"^{_DAY}{_TIME}\\+00$",
    _NUMERIC: r"^-?\d+(\.\d+)?$",
}
"""What the Arrow type can hold, of those types that have values which it cannot."""


def arrow_type(column: Column) -> pa.DataType:
    if column.type_oid == _NUMERIC:
        return _decimal(column.typmod) or pa.string()
    return _ARROW_TYPES.get(column.type_oid, pa.string())


def _decimal(typmod: int) -> pa.DataType | None:
    """None for a numeric without a precision, and for those that PostgreSQL 15 allows and a decimal does not have: a negative
    scale, or one beyond the precision. (numeric.c: the typmod is precision << 16 | scale, an 11-bit signed number, plus 4.)"""
    if typmod < 4:
        return None
    precision = (typmod - 4) >> 16 & 0xFFFF
    scale = (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400
    return pa.decimal128(precision, scale) if precision <= LARGEST_PRECISION and 0 <= scale <= precision else None


def typed_column(column: Column, values: Sequence[bytes | None], table_name: str) -> tuple[pa.Array, dict[int, str]]:
    """The column, and by row the texts of values that have no place in it. Raises WireError for one that is not of its type."""
    kind = arrow_type(column)
    try:
        if column.type_oid == _BOOL:
            return pa.array([_BOOLEANS[value] for value in values], kind), {}
        if column.type_oid == _BYTEA:
            return pa.array([None if value is None else unhexlify(value[2:]) for value in values], kind), {}
        text = pa.array(values, pa.binary()).cast(pa.string())
        try:
            return text.cast(kind), {}
        except pa.ArrowInvalid:
            if kind == pa.string() or column.type_oid not in _FITTING:
                raise
            return _fitting(text, kind, _FITTING[column.type_oid])
    except (pa.ArrowInvalid, KeyError, ValueError):
        raise WireError(f"a value of {table_name}.{column.name} is not of its type {column.type_name}") from None


def _fitting(text: pa.Array, kind: pa.DataType, pattern: str) -> tuple[pa.Array, dict[int, str]]:
    fits = pc.match_substring_regex(text, pattern)
    typed = pc.if_else(fits, text, pa.scalar(None, pa.string())).cast(kind)
    return typed, {row: text[row].as_py() for row in pc.indices_nonzero(pc.invert(fits)).to_pylist()}


_SPECIAL = re.compile(r"[^\w-]")


def directory_name(schema: str, table: str) -> str:
    """``schema.table`` as a directory may be called: what has a meaning in paths is replaced by its code, as in a URL."""
    return ".".join(
        _SPECIAL.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name) for name in (schema, table)
    )
