"""Tables, columns and values, as both processes speak of them, and patterns of names, as options, rules and routes spell them.

    orders        that name; a table's without a schema is in the default schema for options, in any schema for rules and routes
    shop.orders   the table of that schema
    shop.*        every table of that schema
    order_*       ``*`` matches any characters, none included
    "odd.name"    a name with a dot, a ``*`` or a quote in it is in double quotes, its quotes doubled

Names are the catalog's spelling, case included.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

_IDENTIFIER = r'"(?:[^"]|"")+"|[^".]+'
_LIKE_SPECIAL = re.compile(r"[\\%_]")
_QUALIFIED = re.compile(rf"(?:({_IDENTIFIER})\.)?({_IDENTIFIER})")
TableName = tuple[str, str]
"""Schema and name."""


class ReplicaIdentity(enum.StrEnum):
    """``pg_class.relreplident``: which columns an old row carries."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Column:
    """One published column.

    ``type_name`` is ``format_type(type_oid, typmod)`` with only pg_catalog in the search path, so it can be used in
    DDL. ``identity_key`` is the Relation message's key flag: the column is part of the replica identity (every column,
    when that is FULL). ``primary_key_position`` counts from 1 in the order of the primary key; None outside it, and in
    every column when the catalog's key is no longer the one of the flags. ``identity`` and ``generated`` are
    ``pg_attribute.attidentity`` and ``attgenerated`` ("" when neither). ``number`` is ``attnum``, which stays when the
    column is renamed and is never reused; 0 where it is not certain which column the row had under this name.
    ``not_null``, ``identity``, ``generated`` and ``collation`` are false and "" there. ``collation`` describes how a
    nondeterministic collation compares (``shared.postgres.collation``), "" for every other.
    """

    name: str
    type_oid: int
    type_name: str
    typmod: int
    not_null: bool
    primary_key_position: int | None
    identity_key: bool
    identity: str
    generated: str
    number: int = 0
    collation: str = ""

    def encode(self) -> list[Any]:
        """Encodes the column; omits an empty collation, a field that earlier versions do not know."""
        values = _column_values(self)
        return list(values if self.collation else values[:-1])


_column_values = attrgetter(*(field.name for field in fields(Column)))


@dataclass(frozen=True, slots=True)
class Table:
    """One version of a published table; a changed Relation message makes another.

    ``origin`` is what the source calls it (schema and name), where a route gave it another name; else None.
    """

    oid: int
    schema: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[Column, ...]
    origin: tuple[str, str] | None = None

    def __hash__(self) -> int:
        """Tables are looked up all the time; versions of one table are few."""
        return hash((self.oid, self.schema, self.name))

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def source_name(self) -> tuple[str, str]:
        """Schema and name at the source."""
        return self.origin or (self.schema, self.name)

    @property
    def key(self) -> tuple[int, ...]:
        """Indexes of the columns that identify a row, in key order; empty if there is no key.

        The columns of the replica identity, if it is a key: old rows carry these columns and no others. The primary
        key, which is the catalog's of a later time, only gives their order, and only when it is the same columns. Where
        old rows are whole (FULL), or there are none (NOTHING), it is the primary key.
        """
        keyed = sorted((c.primary_key_position, i) for i, c in enumerate(self.columns) if c.primary_key_position is not None)
        primary_key = tuple(i for _, i in keyed)
        if self.replica_identity in (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING):
            return primary_key
        flagged = tuple(i for i, column in enumerate(self.columns) if column.identity_key)
        return primary_key if set(primary_key) == set(flagged) else flagged

    def encode(self) -> dict[str, Any]:
        """Returns the descriptor's JSON form of a relation; ``decode`` is the inverse."""
        relation = {
            "oid": self.oid,
            "schema": self.schema,
            "table": self.name,
            "replica_identity": self.replica_identity.value,
            "columns": [column.encode() for column in self.columns],
        }
        return relation | ({"origin": self.origin} if self.origin else {})

    @classmethod
    def decode(cls, relation: dict[str, Any]) -> Table:
        """Raises KeyError, TypeError or ValueError on a form that ``encode`` does not make."""
        return cls(
            oid=_of_type(relation["oid"], _NUMBER),
            schema=_of_type(relation["schema"], _TEXT),
            name=_of_type(relation["table"], _TEXT),
            replica_identity=ReplicaIdentity(relation["replica_identity"]),
            columns=tuple(map(_column, relation["columns"])),
            origin=_origin(relation.get("origin")),
        )


_NUMBER, _TEXT, _FLAG = (int,), (str,), (bool,)
_COLUMN = (_TEXT, _NUMBER, _TEXT, _NUMBER, _FLAG, (int, type(None)), _FLAG, _TEXT, _TEXT, _NUMBER, _TEXT)
"""Types that the fields of a column may have."""


def _of_type(value: Any, types: tuple[type, ...]) -> Any:
    if type(value) not in types:
        raise TypeError
    return value


def _column(values: list[Any]) -> Column:
    if len(values) > len(_COLUMN):
        raise ValueError("more fields than a column has")
    return Column(*map(_of_type, values, _COLUMN))


def _origin(names: list[str] | None) -> tuple[str, str] | None:
    if names is None:
        return None
    schema, name = names
    return _of_type(schema, _TEXT), _of_type(name, _TEXT)


class Unchanged(enum.Enum):
    """The one value of a TOAST column that an update did not touch and the server did not send."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED

Value = bytes | None | Unchanged
"""Postgres text as bytes, NULL as None, or UNCHANGED: three things, never confused."""


def table_names(table: Table, also: TableName | None) -> tuple[TableName, ...]:
    """Returns the table's own name, and the other one that it has, if any."""
    own = table.schema, table.name
    return (own,) if also is None or also == own else (own, also)


@dataclass(frozen=True, slots=True)
class NamePattern:
    """``text`` is as it was written."""

    text: str

    @classmethod
    def exact(cls, name: str) -> NamePattern:
        """Returns the pattern for that name alone, whatever characters it contains."""
        doubled = name.replace('"', '""')
        return cls(f'"{doubled}"')

    @property
    def is_name(self) -> bool:
        """Returns whether it matches a single name only."""
        return self.text.startswith('"') or "*" not in self.text

    @property
    def name(self) -> str:
        """The one name, as the catalog has it, when ``is_name``."""
        return self.text[1:-1].replace('""', '"') if self.text.startswith('"') else self.text

    def matches(self, name: str) -> bool:
        return name == self.name if self.is_name else _fits(_parts(self.text), name)

    @property
    def like(self) -> str:
        """Returns the pattern for SQL's LIKE."""
        parts = [self.name] if self.is_name else self.text.split("*")
        return "%".join(_LIKE_SPECIAL.sub(r"\\\g<0>", part) for part in parts)

    def __str__(self) -> str:
        return self.name if self.is_name else self.text


@dataclass(frozen=True, slots=True)
class TablePattern:
    """``schema`` is None when none was written: any schema then."""

    text: str
    schema: NamePattern | None
    name: NamePattern

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Raises ValueError, with the end of a sentence that begins with the text."""
        match = _QUALIFIED.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                "is not a table (write 'table', 'schema.table', 'schema.*' or '*', a name with a dot in double quotes)"
            )
        return cls(text, None if match[1] is None else NamePattern(match[1]), NamePattern(match[2]))

    @property
    def is_name(self) -> bool:
        """Returns whether it matches a single table only."""
        return self.name.is_name and (self.schema is None or self.schema.is_name)

    def within(self, schema: str) -> TablePattern:
        """Returns the pattern; if it has no schema, of ``schema`` alone."""
        return self if self.schema is not None else replace(self, schema=NamePattern.exact(schema))

    def matches(self, schema: str, name: str) -> bool:
        return self.name.matches(name) and (self.schema is None or self.schema.matches(schema))


@lru_cache(maxsize=1024)
def _parts(text: str) -> tuple[str, ...]:
    return tuple(text.split("*"))


def _fits(parts: tuple[str, ...], name: str) -> bool:
    """Returns whether the name has the parts in order, the first at its start and the last at its end. A regular expression
    would backtrack from part to part: a dozen parts in a long name would take it minutes, and untrusted users write patterns."""
    first, *between, last = parts
    place, end = len(first), len(name) - len(last)
    if not (name.startswith(first) and name.endswith(last)):
        return False
    for part in between:
        found = name.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return place <= end
