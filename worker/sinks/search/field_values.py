"""PostgreSQL's text as the JSON of a document, a column at a time.

int, oid: numbers. numeric: a number in a scaled field, else text with every digit. float: a number; NaN and infinities
are null, as JSON has none. bool, json, jsonb: as they are; a json value that is no object is put under ``value``,
because the field takes objects only. bytea: base64. date, timestamp, timestamptz: ISO 8601 in UTC; infinities are null.
Arrays: lists of their elements, of one dimension or several. Ranges: text, or bounds where the field is a range.
Anything else is the server's text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence

import orjson

from pgsluice.worker.sinks.lines.json_rows import NULL, JsonColumn, booleans, documents, integers, numbers, strings

Converter = Callable[[Sequence[bytes]], JsonColumn]
"""Converts values without NULL and UNCHANGED to JSON. Raises ValueError or KeyError for a value that is not of its
type."""

_NOT_FINITE = frozenset({b"NaN", b"Infinity", b"-Infinity", b"infinity", b"-infinity"})
_DATE = re.compile(rb"(\d{4,})(-\d\d-\d\d)(?: (\d\d:\d\d:\d\d(?:\.\d+)?)([+-][\d:]+)?)?( BC)?")


def finite_numbers(values: Sequence[bytes]) -> JsonColumn:
    column = numbers(values)
    if not _NOT_FINITE.isdisjoint(values):
        return JsonColumn([NULL if value in _NOT_FINITE else value for value in values], b"")
    return column


def base64_texts(values: Sequence[bytes]) -> JsonColumn:
    """Converts bytea in its hexadecimal form."""
    if any(value[:2] != b"\\x" for value in values):
        raise ValueError("not bytea")
    return JsonColumn([base64.b64encode(binascii.unhexlify(value[2:])) for value in values], b'"')


def dates(values: Sequence[bytes]) -> JsonColumn:
    if all(len(value) == 10 and value[4] == 0x2D for value in values):
        return JsonColumn(values, b'"')
    return JsonColumn([_moment(value) for value in values], b"")


def timestamps(values: Sequence[bytes]) -> JsonColumn:
    """Converts timestamps with and without time zone: without one they are UTC."""
    return JsonColumn([_moment(value) for value in values], b"")


def _moment(value: bytes) -> bytes:
    if value in _NOT_FINITE:
        return NULL
    match = _DATE.fullmatch(value)
    if match is None:
        raise ValueError("not a date")
    year, day, time, zone, era = match.groups()
    if era:
        year = b"-%04d" % (int(year) - 1)  # ISO 8601 has a year 0
    elif len(year) > 4:
        year = b"+" + year
    if time is None:
        return b'"%b%b"' % (year, day)
    return b'"%b%bT%b%b"' % (year, day, time, _zone(zone))


def _zone(zone: bytes | None) -> bytes:
    if zone is None or zone == b"+00":
        return b"Z"
    return zone if b":" in zone else zone + b":00"


def objects(values: Sequence[bytes]) -> JsonColumn:
    """Returns json and jsonb for a field that takes objects only; any other value is put into one."""
    texts = documents(values).texts
    return JsonColumn([text if _is_object(text) else b'{"value":%b}' % text for text in texts], b"")


def _is_object(text: bytes) -> bool:
    begin = text.lstrip()[:1]
    return begin == b"{" or text.strip() == NULL


def array_of(element: Converter) -> Converter:
    """Returns a converter of array literals whose elements ``element`` converts."""

    def convert(values: Sequence[bytes]) -> JsonColumn:
        return JsonColumn([_array(value, element) for value in values], b"")

    return convert


_TOKEN = re.compile(rb'[{},]|"((?:[^"\\]|\\.)*)"|[^{},"]+', re.DOTALL)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def _array(value: bytes, element: Converter) -> bytes:
    text = value.partition(b"=")[2] if value[:1] == b"[" else value  # bounds that do not begin at 1 precede it
    if not text.startswith(b"{") or not text.endswith(b"}"):
        raise ValueError("not an array")
    shape: list[bytes | None] = []  # None for an element, whose JSON is made with all others
    elements: list[bytes] = []
    for token in _TOKEN.finditer(text):
        whole, quoted = token[0], token[1]
        if quoted is not None:
            shape.append(None)
            elements.append(_ESCAPE.sub(rb"\1", quoted))
        elif whole == b"{":
            shape.append(b"[")
        elif whole == b"}":
            shape.append(b"]")
        elif whole == b",":
            shape.append(b",")
        elif whole == b"NULL":
            shape.append(NULL)
        else:
            shape.append(None)
            elements.append(whole)
    texts = iter(element(elements).whole() if elements else ())
    return b"".join(next(texts) if part is None else part for part in shape)


def vectors(values: Sequence[bytes]) -> JsonColumn:
    """pgvector's text is a JSON array."""
    if any(value[:1] != b"[" or value[-1:] != b"]" for value in values):
        raise ValueError("not a vector")
    return JsonColumn(values, b"")


def bounds_of(element: Converter) -> Converter:
    """Returns a converter of ranges for a range field, to an object like {"gte": 1, "lt": 5}. An empty range is null."""

    def convert(values: Sequence[bytes]) -> JsonColumn:
        return JsonColumn([_bounds(value, element) for value in values], b"")

    return convert


def _bounds(value: bytes, element: Converter) -> bytes:
    if value == b"empty":
        return NULL
    low, comma, high = value[1:-1].partition(b",")
    if not comma or value[:1] not in (b"[", b"(") or value[-1:] not in (b"]", b")"):
        raise ValueError("not a range")
    named = ((b"gte" if value[:1] == b"[" else b"gt", low), (b"lte" if value[-1:] == b"]" else b"lt", high))
    parts = [b'"%b":%b' % (name, next(iter(element([bound.strip(b'"')]).whole()))) for name, bound in named if bound]
    return b"{%b}" % b",".join(parts)


def texts_of_numbers(values: Sequence[bytes]) -> JsonColumn:
    """Returns the numbers as texts with every digit."""
    if b"" in values:
        raise ValueError("not a number")
    return JsonColumn(values, b'"')


def json_string(text: str) -> bytes:
    """Returns the JSON text, with its quotes."""
    return orjson.dumps(text)


INTEGERS: Converter = integers
BOOLEANS: Converter = booleans
STRINGS: Converter = strings
DOCUMENTS: Converter = documents
MAY_NULL: frozenset[Converter] = frozenset({finite_numbers, dates, timestamps})
"""Converters that make null of values which JSON, or a date of it, cannot hold."""
