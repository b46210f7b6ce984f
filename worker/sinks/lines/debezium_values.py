"""Postgres text as the values of Debezium's PostgreSQL connector.

Its defaults apply, except one: ``decimal.handling.mode`` is string, because the default needs a schema with each value.

    int2, int4, int8, oid, float4, float8, bool   as in JSON; NaN and infinities are strings
    numeric, uuid, json, jsonb, enums, others      strings
    bytea                                          base64
    date                                           days since 1970
    time, timestamp                                milliseconds with a precision of 3 or less, else microseconds
    timetz, timestamptz                            strings in UTC, with Z
    interval                                       microseconds; a month has 365.25 / 12 days
    arrays of numbers, booleans and text           arrays

An infinite timestamp is the number that Debezium documents for it; an infinite date is the end of a 32-bit integer, an
infinite interval the end of a 64-bit one. Years before 1 and after 9999 are counted as the others are.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time
from functools import lru_cache

from pgsluice.worker.sinks.lines.json_rows import JsonColumn, Kinds, booleans, integers, numbers, strings
from pgsluice.worker.sinks.lines.pg_flo_lines import array_of, base64_texts, calendar

UNAVAILABLE = "__debezium_unavailable_value"
UNAVAILABLE_BYTES = b64encode(UNAVAILABLE.encode()).decode()
BYTEA = 17
MILLISECOND_PRECISIONS = range(4)
MILLISECONDS = {1083: -1083, 1114: -1114}
"""Types whose values are finer than that, and what their OID is here with such a precision."""

_DAY = 86_400_000_000
_MONTH = 365.25 / 12 * _DAY
_DATE = re.compile(rb"(\d{4,})-(\d\d)-(\d\d)( BC)?")
_STAMP = re.compile(rb"(\d{4,}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?( BC)?")
_CLOCK = re.compile(rb"(-?)\+?(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_SPAN = re.compile(rb"([+-]?\d+) (year|mon|day)s?")
_INFINITE_DATES = {b"infinity": 2**31 - 1, b"-infinity": -(2**31)}
_INFINITE_SPANS = {b"infinity": 2**63 - 1, b"-infinity": -(2**63)}
_INFINITE_STAMPS = {b"infinity": 9223372036825200000, b"-infinity": -9223372036832400000}


def _counted(count: Callable[[bytes], int]) -> Callable[[Sequence[bytes]], JsonColumn]:
    return lambda values: JsonColumn([b"%d" % count(value) for value in values], b"")


@lru_cache(maxsize=4096)
def days(value: bytes) -> int:
    """Returns the days since 1970, in the proleptic Gregorian calendar. Raises ValueError."""
    if value in _INFINITE_DATES:
        return _INFINITE_DATES[value]
    match = _DATE.fullmatch(value)
    if match is None:
        raise ValueError("not a date")
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    year = 1 - year if match[4] else year
    year -= month < 3  # a year begins in March: so the leap day is its last
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + day_of_year - 719_468


def microseconds(value: bytes) -> int:
    """Returns the microseconds since 1970. Raises ValueError."""
    if value in _INFINITE_STAMPS:
        return _INFINITE_STAMPS[value]
    match = _STAMP.fullmatch(value)
    if match is None:
        raise ValueError("not a timestamp")
    day = days(match[1] + (match[6] or b""))
    return day * _DAY + _clock(match[2], match[3], match[4], match[5])


def _clock(hours: bytes, minutes: bytes, seconds: bytes, fraction: bytes | None) -> int:
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1_000_000 + int((fraction or b"").ljust(6, b"0"))


def time_of_day(value: bytes) -> int:
    """Returns microseconds. Raises ValueError."""
    match = _CLOCK.fullmatch(value)
    if match is None:
        raise ValueError("not a time")
    return _clock(match[2], match[3], match[4], match[5])


def duration(value: bytes) -> int:
    """Returns an interval in microseconds. Raises ValueError."""
    if value in _INFINITE_SPANS:
        return _INFINITE_SPANS[value]
    total = 0.0
    for count, unit in _SPAN.findall(value):
        total += int(count) * {b"year": 12 * _MONTH, b"mon": _MONTH, b"day": _DAY}[unit]
    rest = _SPAN.sub(b"", value).strip()
    if not rest:
        return round(total)
    match = _CLOCK.fullmatch(rest)
    if match is None:
        raise ValueError("not an interval")
    clock = _clock(match[2], match[3], match[4], match[5])
    return round(total) + (-clock if match[1] else clock)


def _milliseconds(count: Callable[[bytes], int]) -> Callable[[bytes], int]:
    return lambda value: count(value) if value in _INFINITE_STAMPS else count(value) // 1000


def _zoned_times(values: Sequence[bytes]) -> JsonColumn:
    return JsonColumn([_zoned_time(value) for value in values], b'"')


@lru_cache(maxsize=1024)
def _zoned_time(value: bytes) -> bytes:
    text = value.decode("ascii")
    if text.startswith("24:"):
        return value  # Python has no such time
    at = datetime.combine(datetime(2000, 1, 2), time.fromisoformat(text))
    return at.astimezone(UTC).time().isoformat().encode() + b"Z"


KINDS: Kinds = {
    16: booleans,
    BYTEA: base64_texts,
    20: integers,  # int8
    21: integers,  # int2
    23: integers,  # int4
    26: integers,  # oid
    700: numbers,  # float4
    701: numbers,  # float8
    1000: array_of(booleans),
    1005: array_of(integers),  # int2[]
    1007: array_of(integers),  # int4[]
    1009: array_of(strings),  # text[]
    1015: array_of(strings),  # varchar[]
    1016: array_of(integers),  # int8[]
    1021: array_of(numbers),  # float4[]
    1022: array_of(numbers),  # float8[]
    1082: _counted(days),
    1083: _counted(time_of_day),
    -1083: _counted(_milliseconds(time_of_day)),
    1114: _counted(microseconds),
    -1114: _counted(_milliseconds(microseconds)),
    1184: calendar(b"+00", b"Z"),
    1186: _counted(duration),
    1231: array_of(strings),  # numeric[]
    1266: _zoned_times,
    2951: array_of(strings),  # uuid[]
}
"""Converters by type OID (pg_type.dat), including those of MILLISECONDS."""
