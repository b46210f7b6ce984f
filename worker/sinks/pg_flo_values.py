"""Postgres text as pg_flo's JSON, a column at a time (``json_values`` does the same for our own lines).

As in pg_flo: numeric and oid are strings, bytea is base64, timestamps with and without a time zone and dates are RFC 3339 (those
without a zone as if in UTC), and arrays of integers, floats, booleans and text are JSON arrays. What pg_flo breaks at, or gets
wrong, is the server's text here: NaN and infinities, years that RFC 3339 does not have. Arrays are read as PostgreSQL writes
them, with quotes, NULL and more than one dimension.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import unhexlify
from collections.abc import Callable, Sequence

import orjson

from worker.sinks.json_values import KINDS, NULL, JsonColumn, Kinds, booleans, integers, numbers, strings

_DASH = ord("-")
_LAST_DIGIT = ord("9")
_NO_CALENDAR = re.compile(rb"[-+ :.0-9A-Za-z]+")
_BOUNDS = re.compile(rb"(?:\[[+-]?\d+:[+-]?\d+\])+=")
_TOKEN = re.compile(rb'([{},])|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+)', re.DOTALL)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_BRACKETS = {b"{": b"[", b"}": b"]", b",": b","}


def _bytea(values: Sequence[bytes]) -> JsonColumn:
    if not all(value.startswith(b"\\x") for value in values):
        raise ValueError("not a bytea")
    return JsonColumn([b64encode(unhexlify(value[2:])) for value in values], b'"')


def _calendar(end: bytes, suffix: bytes) -> Callable[[Sequence[bytes]], JsonColumn]:
    """Of texts that end in ``end``, which becomes ``suffix``. Far years and infinity stay what they are."""

    def column(values: Sequence[bytes]) -> JsonColumn:
        return JsonColumn([_rfc_3339(value, end, suffix) for value in values], b'"')

    return column


def _rfc_3339(value: bytes, end: bytes, suffix: bytes) -> bytes:
    if len(value) >= 10 and value[4] == _DASH and value.endswith(end) and value[len(value) - len(end) - 1] <= _LAST_DIGIT:
        return value[: len(value) - len(end)].replace(b" ", b"T") + suffix
    if _NO_CALENDAR.fullmatch(value) is None:
        raise ValueError("neither a date nor a timestamp")
    return value


def _array(element: Callable[[Sequence[bytes]], JsonColumn]) -> Callable[[Sequence[bytes]], JsonColumn]:
    def column(values: Sequence[bytes]) -> JsonColumn:
        return JsonColumn([_json_array(value, element) for value in values], b"")

    return column


def _json_array(text: bytes, element: Callable[[Sequence[bytes]], JsonColumn]) -> bytes:
    """Raises ValueError for what is not an array (manual: "Array Input and Output Syntax")."""
    bounds = _BOUNDS.match(text)
    position = bounds.end() if bounds else 0
    pieces = []
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError("not an array")
        position = token.end()
        bracket, quoted, bare = token.groups()
        if bracket is not None:
            pieces.append(_BRACKETS[bracket])
        elif bare == b"NULL":
            pieces.append(NULL)
        else:
            (piece,) = element([_ESCAPE.sub(rb"\1", bare if quoted is None else quoted)]).whole()
            pieces.append(piece)
    array = b"".join(pieces)
    if not isinstance(orjson.loads(array), list):
        raise ValueError("not an array")
    return array


PG_FLO_KINDS: Kinds = {
    **{oid: kind for oid, kind in KINDS.items() if oid not in (26, 1700)},  # oid and numeric are strings
    17: _bytea,
    1000: _array(booleans),
    1005: _array(integers),  # int2[]
    1007: _array(integers),  # int4[]
    1009: _array(strings),  # text[]
    1015: _array(strings),  # varchar[]
    1016: _array(integers),  # int8[]
    1021: _array(numbers),  # float4[]
    1022: _array(numbers),  # float8[]
    1082: _calendar(b"", b"T00:00:00Z"),  # date
    1114: _calendar(b"", b"Z"),  # timestamp
    1184: _calendar(b"+00", b"Z"),  # timestamptz
}
"""By type OID (pg_type.dat)."""
