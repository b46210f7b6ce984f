"""The kinds of values an option can have, and the parser of each.

Every source speaks text: a flag, an environment variable, a default, and a YAML scalar too (its characters, not YAML's
guess at a type, so that the password ``0123`` stays what it is). One function per kind reads that text, whatever the
source. It raises ValueError with the end of a sentence that begins with the value: ``is not a whole number``.
"""

from __future__ import annotations

import enum
import json
import os
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from pgsluice.shared.config.postgres_url import url_parts
from pgsluice.shared.hosts import may_be_name
from pgsluice.shared.wire.position import format_lsn, parse_lsn

Raw = str | tuple[str, ...] | Mapping[str, str]
"""A source's value for a key: one text, a list of texts, or named texts."""

Value = str | int | float | bool | tuple[str, ...] | dict[str, str]
"""A parsed value."""


class Kind(enum.Enum):
    """``value`` is how help texts call it."""

    TEXT = "TEXT"
    NUMBER = "NUMBER"
    SWITCH = "true|false"
    SIZE = "SIZE"
    DURATION = "DURATION"
    LIST = "NAME,NAME"
    FILE = "FILE"
    LSN = "LSN"
    SERVERS = "URL,URL"
    URL = "URL"
    ADDRESS = "HOST:PORT"
    DATABASE = "postgres://…"
    PAIRS = "KEY=VALUE"


EMPTY: Mapping[Kind, Value] = {
    Kind.TEXT: "",
    Kind.NUMBER: 0,
    Kind.SWITCH: False,
    Kind.SIZE: 0,
    Kind.DURATION: 0.0,
    Kind.LIST: (),
    Kind.FILE: "",
    Kind.LSN: "",
    Kind.SERVERS: "",
    Kind.URL: "",
    Kind.ADDRESS: "",
    Kind.DATABASE: "",
    Kind.PAIRS: {},
}
"""The value of an option that was not given."""

_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "t": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
    "f": False,
}

_SIZE = re.compile(r"([0-9]+)\s*([a-z]*)", re.IGNORECASE)
_SIZE_UNITS: Mapping[str, int] = {"": 1, "b": 1} | {
    letter + suffix: factor**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, factor in (("b", 1000), ("ib", 1024))
}

_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?", re.IGNORECASE)
_DURATION_UNITS_S = (86400, 3600, 60, 1)
_LONGEST_YEARS = 100  # so that the time that far from now can be represented
_LONGEST_S = _LONGEST_YEARS * 365.25 * 86400

_LIST_SEPARATOR = re.compile(r"[\s,]+")


def parse_number(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise ValueError("is not a whole number")
    return int(text)


def parse_switch(text: str) -> bool:
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise ValueError("is neither true nor false") from None


def parse_size(text: str) -> int:
    """Returns bytes. ``10GiB`` counts in 1024s, ``10GB`` in 1000s, a bare number is bytes; ``10G`` could be either and
    is refused."""
    match = _SIZE.fullmatch(text)
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError("is not a size (a whole number followed by B, KB, MB, GB, TB, KiB, MiB, GiB or TiB)")
    return int(match[1]) * factor


def parse_duration(text: str) -> float:
    """Returns seconds. ``7d``, ``24h``, ``1h30m``, ``45s``; a bare number would leave its unit open and is refused,
    except 0."""
    match = _DURATION.fullmatch(text)
    if text == "0":
        return 0.0
    if match is None or not any(match.groups()):
        raise ValueError("is not a duration (numbers followed by d, h, m or s, the largest first)")
    seconds = sum(float(count) * unit_s for count, unit_s in zip(match.groups(), _DURATION_UNITS_S, strict=True) if count)
    if seconds > _LONGEST_S:
        raise ValueError(f"is longer than {_LONGEST_YEARS} years")
    return seconds


def parse_list(text: str) -> tuple[str, ...]:
    """Returns names that are separated by commas, spaces or both; a name that holds one of these needs a YAML list."""
    return tuple(name for name in _LIST_SEPARATOR.split(text) if name)


def parse_file(text: str) -> str:
    """Returns a path that can be read. ``~`` is the home directory. Nothing is read yet: the path may be a pipe."""
    path = os.path.expanduser(text)
    if os.path.isdir(path):
        raise ValueError("is a directory, not a file")
    if not os.path.exists(path):
        raise ValueError("is not there (no such file)")
    if not os.access(path, os.R_OK):
        raise ValueError("may not be read by this user")
    return path


def parse_lsn_text(text: str) -> str:
    """Returns the server's own spelling of an LSN."""
    try:
        return format_lsn(parse_lsn(text))
    except ValueError:
        raise ValueError("is not an LSN (two hexadecimal numbers with a '/' between them)") from None


def parse_servers(text: str) -> str:
    """Returns NATS URLs, comma-separated, each completed by its scheme. Their text is never part of an error: it can
    hold a password."""
    return ",".join(_parse_server(url) for url in parse_list(text))


def _parse_server(url: str) -> str:
    complete = url if "://" in url else "nats://" + url
    try:
        parts = urlsplit(complete)
        usable = parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0 and not parts.path.strip("/")
        usable = usable and may_be_name(parts.hostname or "")
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("is not a list of NATS URLs (nats://host:port or tls://host:port, separated by commas)")
    return complete


def parse_url(text: str) -> str:
    """Returns an HTTP URL. Its text is never part of an error: it can hold a secret."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and parts.username is None and not parts.fragment and not re.search(r"[^!-~]", text)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("is not an HTTP URL (https://host:port/path, in ASCII and without user, password and fragment)")
    return text


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of what ``parse_address`` takes."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_address(text: str) -> str:
    """Parses the address where a server listens. An IPv6 address is in brackets; port 0 is any that is free."""
    if re.fullmatch(r"(\[[0-9a-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}", text, re.IGNORECASE) is None or split_address(text)[1] > 65535:
        raise ValueError("is not HOST:PORT, as in 127.0.0.1:9464 or [::1]:9464 (port 0: any that is free)")
    return text


def parse_database_url(text: str) -> str:
    """Returns the URL itself, which can be taken apart (``postgres_url``). Its text is never part of an error: it can
    hold a password."""
    url_parts(text)
    return text


def parse_pairs(text: str) -> dict[str, str]:
    """Returns a JSON object whose values are scalars."""
    try:
        content = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or any(isinstance(value, (dict, list)) or value is None for value in content.values()):
        raise ValueError("is not a JSON object of texts, numbers, true and false")
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in content.items()}


def parse_flag_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Parses ``KEY=VALUE``, one per flag; the value can contain further ``=``."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError("is not KEY=VALUE")
        pairs[key] = value
    return pairs


_SCALARS: Mapping[Kind, Callable[[str], Value]] = {
    Kind.TEXT: str,
    Kind.NUMBER: parse_number,
    Kind.SWITCH: parse_switch,
    Kind.SIZE: parse_size,
    Kind.DURATION: parse_duration,
    Kind.LIST: parse_list,
    Kind.FILE: parse_file,
    Kind.LSN: parse_lsn_text,
    Kind.SERVERS: parse_servers,
    Kind.URL: parse_url,
    Kind.ADDRESS: parse_address,
    Kind.DATABASE: parse_database_url,
    Kind.PAIRS: parse_pairs,
}


def parse(kind: Kind, raw: Raw) -> Value:
    """Returns the value of ``raw``; raises ValueError when it is of another shape or form than ``kind`` accepts."""
    match raw:
        case str():
            return _SCALARS[kind](raw)
        case tuple() if kind is Kind.LIST:
            return raw
        case tuple() if kind is Kind.SERVERS:
            return ",".join(_parse_server(url) for url in raw)
        case Mapping() if kind is Kind.PAIRS:
            return dict(raw)
        case tuple():
            raise ValueError("is a list, but one value is needed")
        case _:
            raise ValueError("is a mapping, but one value is needed")
