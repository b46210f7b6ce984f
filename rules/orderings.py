"""The comparison of values of PostgreSQL's types, read from the text in which the server sends them.

    smallint, integer, bigint, oid, numeric    exactly; numeric's NaN equals itself and is above all
    real, double precision                     as double precision; NaN the same
    boolean                                    false below true
    text, varchar, char(n), name, "char"       by bytes of UTF-8 (COLLATE "C"), char(n) without the blanks at its end
    date, timestamp, timestamptz, time         by time, with infinity and years before Christ; a zone is turned into UTC
    interval                                   a month is 30 days and a day 24 hours, as the server compares them
    uuid                                       by bytes
    inet, cidr                                 IPv4 below IPv6, then by network, its length, and address
    types that are not built in                for equality, by their text: the stream lacks an enum's order, a rule can give it

An *ordering* turns a column's values into *keys*, which Python compares as PostgreSQL compares the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from itertools import repeat
from typing import Any
from uuid import UUID

from pgsluice.rules.known_rows import TestValues
from pgsluice.rules.value_text import clock_key, date_key, interval_key, network_key, time_keys, timestamp_key
from pgsluice.shared.wire.table import Column

FIRST_USER_OID = 16384
"""Types from here on were made in the database: enums, domains, types of extensions (manual: "System Catalog Initial Data")."""

BLANK_PADDED_OID = 1042

_DOCUMENT_OIDS = (114, 142, 3802)
"""json, xml, jsonb."""

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "lt": operator.lt,
    "gte": operator.ge,
    "lte": operator.le,
}

Key = Any
"""A key of one kind within an ordering; hashable."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """``keys`` raises ValueError when a value is not of the type. ``constant`` reads a key from a rule's text, and
    raises ValueError with the end of a sentence that begins with the text. ``is_text``: case can be ignored.
    ``has_order``: greater and less mean something."""

    keys: Callable[[Sequence[bytes]], Iterable[Key]]
    constant: Callable[[str], Key]
    is_text: bool = False
    has_order: bool = True

    def test(self, operator_name: str, constant: Key) -> TestValues:
        return partial(_test, self.keys, OPERATORS[operator_name], constant)

    def ignoring_case(self) -> Ordering:
        return Ordering(lambda values: _folded(self.keys(values)), str.casefold, is_text=True, has_order=self.has_order)


def _test(
    keys: Callable[[Sequence[bytes]], Iterable[Key]], compare: Callable[[Key, Key], bool], constant: Key, values: Sequence[bytes]
) -> bytes:
    return bytes(map(compare, keys(values), repeat(constant)))


class _NotANumber:
    """NaN as PostgreSQL orders it: equal to itself, greater than every other number."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 0

    def __lt__(self, other: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return self is other

    def __gt__(self, other: object) -> bool:
        return self is not other

    def __ge__(self, other: object) -> bool:
        return True

    def __reduce__(self) -> str:
        return "_NAN"


_NAN = _NotANumber()


def _whole_keys(values: Sequence[bytes]) -> Iterable[Key]:
    return list(map(int, values))


def _exact_keys(values: Sequence[bytes]) -> Iterable[Key]:
    text = b"\n".join(values).decode()
    try:
        keys = list(map(Decimal, text.split("\n"))) if values else []
    except InvalidOperation:
        raise ValueError("is not a number") from None
    return [_NAN if key.is_nan() else key for key in keys] if "N" in text else keys


def _float_keys(values: Sequence[bytes]) -> Iterable[Key]:
    keys = list(map(float, values))
    return [_NAN if key != key else key for key in keys] if b"NaN" in values else keys


def _number(text: str) -> Key:
    """Returns an int where it is one: that compares fastest."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError("is not a number") from None
    if number.is_nan():
        return _NAN
    return int(number) if number.is_finite() and number == number.to_integral_value() and number.adjusted() < 40 else number


def _float(text: str) -> Key:
    number = _number(text)
    return number if number is _NAN else float(number)


_BOOLEANS = frozenset((b"t", b"f"))
_BOOLEAN_WORDS = {"true": b"t", "t": b"t", "yes": b"t", "y": b"t", "on": b"t", "1": b"t"} | {
    "false": b"f",
    "f": b"f",
    "no": b"f",
    "n": b"f",
    "off": b"f",
    "0": b"f",
}


def _boolean_keys(values: Sequence[bytes]) -> Iterable[Key]:
    if not _BOOLEANS.issuperset(values):
        raise ValueError("is not a boolean")
    return values


def _boolean(text: str) -> bytes:
    try:
        return _BOOLEAN_WORDS[text.lower()]
    except KeyError:
        raise ValueError("is neither true nor false") from None


def _text_keys(values: Sequence[bytes]) -> Iterable[Key]:
    return values


def _unpadded_keys(values: Sequence[bytes]) -> Iterable[Key]:
    return [value.rstrip(b" ") for value in values]


def _unpadded(text: str) -> bytes:
    return text.rstrip(" ").encode()


def _folded(keys: Iterable[bytes]) -> Iterable[Key]:
    return [key.decode().casefold() for key in keys]


def _uuid(text: str) -> bytes:
    try:
        return str(UUID(text)).encode()
    except ValueError:
        raise ValueError("is not a uuid") from None


_interval = lru_cache(maxsize=8192)(interval_key)


def _interval_keys(values: Sequence[bytes]) -> Iterable[Key]:
    return [_interval(value.decode()) for value in values]


def _network_keys(values: Sequence[bytes]) -> Iterable[Key]:
    return [network_key(value.decode()) for value in values]


_WHOLE = Ordering(_whole_keys, _number)
_FLOAT = Ordering(_float_keys, _float)
_TEXT = Ordering(_text_keys, str.encode, is_text=True)
_NETWORK = Ordering(_network_keys, network_key)
_BUILT_IN = {
    16: Ordering(_boolean_keys, _boolean),
    18: _TEXT,
    19: _TEXT,
    20: _WHOLE,
    21: _WHOLE,
    23: _WHOLE,
    25: _TEXT,
    26: _WHOLE,
    650: _NETWORK,
    700: _FLOAT,
    701: _FLOAT,
    869: _NETWORK,
    1042: Ordering(_unpadded_keys, _unpadded, is_text=True),
    1043: _TEXT,
    1082: Ordering(time_keys, date_key),
    1083: Ordering(_text_keys, clock_key),
    1114: Ordering(time_keys, partial(timestamp_key, zone=False)),
    1184: Ordering(time_keys, partial(timestamp_key, zone=True)),
    1186: Ordering(_interval_keys, _interval),
    1700: Ordering(_exact_keys, _number),
    2950: Ordering(_text_keys, _uuid),
}
_USER_DEFINED = Ordering(_text_keys, str.encode, is_text=True, has_order=False)

_ELEMENTS = {
    1000: 16,
    1002: 18,
    1003: 19,
    1016: 20,
    1005: 21,
    1007: 23,
    1009: 25,
    1028: 26,
    651: 650,
    1021: 700,
    1022: 701,
    1041: 869,
    1014: 1042,
    1015: 1043,
    1182: 1082,
    1183: 1083,
    1115: 1114,
    1185: 1184,
    1187: 1186,
    1231: 1700,
    2951: 2950,
}
"""The type of an array's elements (pg_type.typelem), for arrays of the types above."""


def ordering_of(column: Column) -> Ordering | None:
    """Returns None when values of the column's type cannot be compared."""
    if is_array(column):
        return None
    if is_citext(column):
        return _TEXT.ignoring_case()
    return _BUILT_IN.get(column.type_oid, _USER_DEFINED if column.type_oid >= FIRST_USER_OID else None)


def element_ordering(column: Column) -> Ordering | None:
    """Returns the ordering for the elements of an array; None also for other types."""
    if not is_array(column):
        return None
    return _BUILT_IN.get(_ELEMENTS.get(column.type_oid, 0), _USER_DEFINED if column.type_oid >= FIRST_USER_OID else None)


def labels_ordering(labels: Sequence[str]) -> Ordering:
    """Returns the ordering of an enum whose labels, in order, a rule names."""
    places = {label.encode(): place for place, label in enumerate(labels)}

    def keys(values: Sequence[bytes]) -> Iterable[Key]:
        try:
            return [places[value] for value in values]
        except KeyError:
            raise ValueError("is none of the labels") from None

    def constant(text: str) -> int:
        try:
            return places[text.encode()]
        except KeyError:
            raise ValueError(f"is none of the labels ({', '.join(labels)})") from None

    return Ordering(keys, constant)


def is_array(column: Column) -> bool:
    return column.type_name.endswith("[]")


def is_citext(column: Column) -> bool:
    return column.type_oid >= FIRST_USER_OID and column.type_name.rpartition(".")[2] == "citext"


def is_text(column: Column) -> bool:
    """Returns whether any text is a value of the type, as far as its oid determines; unknown for types that are not
    built in."""
    if is_array(column):
        return False
    return column.type_oid >= FIRST_USER_OID or (column.type_oid in _BUILT_IN and _BUILT_IN[column.type_oid].is_text)


def is_searched_as_text(column: Column) -> bool:
    """Returns whether parts of its values can be found or replaced: those of a text, and of a document in the text that
    the server sends. What is made of a document has to be one again, which the target checks.
    """
    return is_text(column) or column.type_oid in _DOCUMENT_OIDS
