"""The text of some types' values: an array's elements, and keys that compare as the server compares the values.

    arrays                           any depth of nesting (manual: "Array Input and Output Syntax")
    inet, cidr                       addresses and networks
    dates, times, intervals          as the server writes them (manual: "Date/Time Output", style ISO, zone UTC)

From year 1 to 9999 the server's text of a date or timestamp compares as the time itself: it is its own key. Other values (years
before Christ or of five digits and more, infinity) become texts that compare right with those.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from functools import lru_cache
from ipaddress import ip_interface

_BOUNDS = re.compile(rb"(?:\[[+-]?\d+(?::[+-]?\d+)?\])+=")
_TOKEN = re.compile(rb'[{},]|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+)', re.DOTALL)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def array_elements(text: bytes) -> list[bytes | None]:
    """Returns the elements; None is a NULL. Raises ValueError when the text is not an array's."""
    bounds = _BOUNDS.match(text)
    position = bounds.end() if bounds else 0
    if text[position : position + 1] != b"{" or not text.endswith(b"}"):
        raise ValueError("is not an array")
    elements: list[bytes | None] = []
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError("is not an array")
        position = token.end()
        quoted, bare = token.groups()
        if quoted is not None:
            elements.append(_ESCAPE.sub(rb"\1", quoted))
        elif bare is not None:
            elements.append(None if bare == b"NULL" else _ESCAPE.sub(rb"\1", bare))
    return elements


NetworkKey = tuple[int, str, int]
"""The version, the bits of the network, the whole address: IPv4 comes before IPv6, a network before those inside it."""


@lru_cache(maxsize=8192)
def network_key(text: str) -> NetworkKey:
    """Raises ValueError with the end of a sentence that begins with the text."""
    try:
        interface = ip_interface(text)
    except ValueError:
        raise ValueError("is not an address (write one like 192.168.0.1 or 10.0.0.0/8)") from None
    bits = f"{int(interface.ip):0{interface.max_prefixlen}b}"
    return interface.version, bits[: interface.network.prefixlen], int(interface.ip)


_YEAR = re.compile(rb"(\d{4,7})(-\d\d-\d\d(?: [\d:.]+(?:\+00)?)?)( BC)?")
_BEFORE_CHRIST, _LONG_YEAR, _INFINITY = b"!", b":", b"~"
"""Below all digits, above all digits, above both."""
_INFINITIES = {b"infinity": _INFINITY, b"-infinity": b" "}
_LAST_YEAR = 9_999_999
"""Above the last year that PostgreSQL can hold."""

_INTERVAL = re.compile(r"(?:[+-]?\d+(?:\.\d+)? *[a-z]+ *)*(?:[+-]?\d+:\d\d(?::\d\d(?:\.\d{1,6})?)?)?", re.IGNORECASE)
_AMOUNT = re.compile(r"([+-]?\d+(?:\.\d+)?) *([a-z]+)", re.IGNORECASE)
_CLOCK = re.compile(r"([+-]?)(\d+):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?$")
_LONGEST_INTERVAL = 200  # no number of it is too long to be one, and no expression takes its time
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_UNITS = {
    "second": _SECOND,
    "sec": _SECOND,
    "minute": 60 * _SECOND,
    "min": 60 * _SECOND,
    "hour": 3600 * _SECOND,
    "day": _DAY,
    "week": 7 * _DAY,
    "mon": 30 * _DAY,
    "month": 30 * _DAY,
    "year": 360 * _DAY,
}


def time_keys(values: Sequence[bytes]) -> list[bytes]:
    """Returns the keys of dates and timestamps."""
    try:
        return [value if value[4] == 45 and value[-1] != 67 else _far_key(value) for value in values]  # 45 is "-", 67 is "C"
    except IndexError:
        raise ValueError("is too short") from None


def _far_key(value: bytes) -> bytes:
    if value in _INFINITIES:
        return _INFINITIES[value]
    match = _YEAR.fullmatch(value)
    if match is None:
        raise ValueError("is not a date or timestamp")
    if match[3]:
        return b"%s%07d%s" % (_BEFORE_CHRIST, _LAST_YEAR - int(match[1]), match[2])
    return b"%s%07d%s" % (_LONG_YEAR, int(match[1]), match[2])


def date_key(text: str) -> bytes:
    """Returns the key of ``2024-02-29`` or infinity."""
    infinity = _INFINITIES.get(text.lower().encode())
    if infinity is not None:
        return infinity
    try:
        return date.fromisoformat(text).isoformat().encode()
    except ValueError:
        raise ValueError("is not a date (write one like 2024-02-29)") from None


def timestamp_key(text: str, *, zone: bool) -> bytes:
    """Returns the key of ``2024-02-29``, ``2024-02-29 12:00:00.5`` or ``2024-02-29T12:00:00+01:00``, or infinity.
    Without a zone it is UTC.

    ``zone``: for the keys of timestamp with time zone.
    """
    infinity = _INFINITIES.get(text.lower().encode())
    if infinity is not None:
        return infinity
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise ValueError("is not a timestamp (write one like 2024-02-29 12:00:00 or 2024-02-29T12:00:00Z)") from None
    return (_without_zeros(moment.isoformat(" ")) + ("+00" if zone else "")).encode()


def clock_key(text: str) -> bytes:
    """Returns the key of a time of day."""
    if text == "24:00:00":
        return text.encode()
    try:
        moment = time.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is not None:
        raise ValueError("is not a time of day (write one like 12:30:00)")
    return _without_zeros(moment.isoformat()).encode()


def _without_zeros(text: str) -> str:
    """The server writes no zeros at the end of a fraction."""
    return text.rstrip("0") if "." in text else text


def interval_key(text: str) -> float:
    """Returns the microseconds of ``1 year 2 mons -3 days 04:05:06.789`` and other spellings, like ``90 minutes``. An
    int unless it is infinite."""
    if text.lower() in ("infinity", "-infinity"):
        return -math.inf if text.startswith("-") else math.inf
    text = text.strip()
    if not text or len(text) > _LONGEST_INTERVAL or _INTERVAL.fullmatch(text) is None:
        raise ValueError("is not an interval (write one like 1 day 02:30:00 or 90 minutes)")
    total = 0
    for amount, word in _AMOUNT.findall(text):
        unit = _UNITS.get(word.lower().removesuffix("s") if len(word) > 1 else word)
        if unit is None:
            raise ValueError(f"is not an interval ('{word}' is no unit of time)")
        total += round(float(amount) * unit) if "." in amount else int(amount) * unit
    clock = _CLOCK.search(text)
    if clock:
        sign, hours, minutes, seconds, fraction = clock.groups()
        length = (int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)) * _SECOND + int((fraction or "").ljust(6, "0"))
        total += -length if sign == "-" else length
    return total
