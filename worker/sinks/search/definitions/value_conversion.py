"""Converts values of documents, when the type of their column is altered: like PostgreSQL's cast, from JSON alone.

| from | to | |---|---| | int2, int4, int8, oid | each other, numeric, text | | numeric | numeric, int, text | | bool,
uuid, enums and whatever else is a plain text | text | | text, varchar, citext | each other | | int2, int4 | double
precision | | any type | itself with wider modifiers; under another name |

Arrays as their elements. For anything else the document has too little data: it depends on a time zone, on rounding, on
padding.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, assert_never

import orjson

from pgsluice.shared.wire.definition import DefinedColumn
from pgsluice.shared.wire.table import Column
from pgsluice.worker.sinks.search import field_values
from pgsluice.worker.sinks.search.mapping import base_type, numeric_modifiers, usual_converter

_INTEGERS = frozenset({"smallint", "integer", "bigint", "oid"})
_TEXTS = frozenset({"text", "character varying", "citext"})
_PLAIN = frozenset({"uuid", "inet", "cidr", "macaddr", "name", "xml"})
"""Types, besides enums, whose text is the result of a cast to text."""
_MOMENTS = frozenset({"timestamp without time zone", "timestamp with time zone"})


class Way(enum.Enum):
    """The conversion of a value."""

    AS_TEXT = "as text"
    AS_NUMBER = "as number"
    AS_DIGITS = "as digits"
    """A number as text, as ``numeric`` that no field of numbers holds."""


@dataclass(frozen=True, slots=True)
class ValueConversion:
    """``scale`` is the number of digits after the decimal point, None for unchanged ones; ``longest`` the limit of
    characters of a text, 0 for none. Picklable."""

    way: Way
    scale: int | None = None
    longest: int = 0

    def __call__(self, value: Any) -> Any:
        """``value`` is one of ``read_fields``. What is not of the type that it was to be is left as it is: a rule made it."""
        if isinstance(value, list):
            return [self(each) for each in value]
        if value is None or isinstance(value, dict):
            return value
        match self.way:
            case Way.AS_TEXT:
                text = value if isinstance(value, str) else _text(value)
                return text[: self.longest] if self.longest else text
            case Way.AS_NUMBER:
                digits = self._digits(value)
                return value if digits is None else orjson.Fragment(digits)
            case Way.AS_DIGITS:
                digits = self._digits(value)
                return value if digits is None else digits
            case unreachable:
                assert_never(unreachable)

    def _digits(self, value: Any) -> str | None:
        """Returns None for what is no number."""
        if isinstance(value, bool):
            return None
        try:
            number = Decimal(_text(value))
        except InvalidOperation:
            return None
        if not number.is_finite():
            return None
        if self.scale is None:
            return _text(value)
        return f"{number.quantize(Decimal(1).scaleb(-self.scale), ROUND_HALF_UP):f}"


class NotConvertible(Exception):  # noqa: N818  no failure: a person decides
    """The new values cannot be derived from documents."""


def conversion(was: DefinedColumn, now: DefinedColumn, *, is_rewritten: bool) -> ValueConversion | None:
    """Returns None when values stay unchanged. ``is_rewritten``: PostgreSQL rewrote the rows for it. Raises
    NotConvertible."""
    if was.type_name.endswith("[]") is not now.type_name.endswith("[]"):
        raise NotConvertible
    before, after = base_type(column_of(was)), base_type(column_of(now))
    if "numeric" in (before, after) and {before, after} <= _INTEGERS | {"numeric"}:
        return _numeric(was, now, after)
    if before in _INTEGERS and after in _INTEGERS:
        return None
    if after in _TEXTS:
        return _to_text(was, now, before)
    if before in ("smallint", "integer") and after == "double precision":
        return None
    if {before, after} <= _MOMENTS and not is_rewritten:
        return None
    if before == after or was.type_oid == now.type_oid:
        if is_rewritten and not _is_wider(was, now):
            raise NotConvertible
        return None
    if (before, after) == ("cidr", "inet"):
        return None
    raise NotConvertible


def keeps_text(conversion: ValueConversion | None, was: DefinedColumn) -> bool:
    """Returns whether the text of a value, which is a part of the id where the column is of the key, stays what it was."""
    if conversion is None:
        return True
    return conversion == ValueConversion(Way.AS_TEXT) and base_type(column_of(was)) != "boolean"


def _to_text(was: DefinedColumn, now: DefinedColumn, before: str) -> ValueConversion | None:
    longest = max(0, now.typmod - 4) if base_type(column_of(now)) == "character varying" else 0
    longest_before = max(0, was.typmod - 4) if before == "character varying" else 0
    cut = longest if longest and not 0 < longest_before <= longest else 0
    is_known = before in _INTEGERS | _TEXTS | _PLAIN | {"numeric", "boolean"}
    if not is_known and not _is_enum(was):
        raise NotConvertible
    if before in _TEXTS | _PLAIN and not cut:
        return None
    return ValueConversion(Way.AS_TEXT, longest=cut)


def _numeric(was: DefinedColumn, now: DefinedColumn, after: str) -> ValueConversion | None:
    if after != "numeric":
        return ValueConversion(Way.AS_NUMBER, scale=0)
    precision, scale = numeric_modifiers(column_of(now))
    if scale < 0:
        raise NotConvertible
    is_number = usual_converter(column_of(now)) is not field_values.texts_of_numbers
    was_scale = numeric_modifiers(column_of(was))[1]
    kept = None if not precision or scale == was_scale else scale
    if base_type(column_of(was)) != "numeric":
        kept = scale if precision else None
    return ValueConversion(Way.AS_NUMBER if is_number else Way.AS_DIGITS, kept)


def _is_enum(column: DefinedColumn) -> bool:
    """Returns whether the type comes with no extension or server: only enums, domains and composite types do so; see
    ``_FIRST_NORMAL_OID``."""
    return False if column.type_oid < _FIRST_NORMAL_OID else usual_converter(column_of(column)) is field_values.STRINGS


_FIRST_NORMAL_OID = 16384


def _is_wider(was: DefinedColumn, now: DefinedColumn) -> bool:
    return now.typmod == -1 or 0 <= was.typmod <= now.typmod


def column_of(column: DefinedColumn) -> Column:
    """Converts a definition's column to the wire's Column."""
    return Column(
        column.name,
        column.type_oid,
        column.type_name,
        column.typmod,
        column.not_null,
        column.primary_key_position,
        identity_key=False,
        identity=column.identity,
        generated=column.generated,
        number=column.number,
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value).decode()
