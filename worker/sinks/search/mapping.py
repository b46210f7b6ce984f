"""The mapping of a table's documents: a field for each column, and its converter to JSON.

| PostgreSQL | field | |---|---| | int2, int4, int8, oid | ``long`` | | numeric(p ≤ 18, s ≤ 9) | ``scaled_float`` | |
any other numeric | ``keyword`` with every digit, and ``.n``, a ``double``, to sort and compare | | float4, float8 |
``float``, ``double`` | | bool | ``boolean`` | | text, varchar, citext | ``text``, and ``.keyword`` up to 8,191
characters | | date, timestamp, timestamptz | ``date`` | | json, jsonb | ``flat_object`` (OpenSearch), ``flattened``
(Elasticsearch) | | inet, cidr | ``keyword``, and ``.ip`` | | vector(n) | ``knn_vector`` (OpenSearch), ``dense_vector``
(Elasticsearch) | | arrays | the field of their elements | | anything else | ``keyword``, searchable up to 8,191
characters |

A document whose key is no id has it in ``_key``; one with a value that no index accepts (a leaf of a json that is too
large, a vector of zeros) has the whole value in ``%whole``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, assert_never

from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.sinks.search import field_values as values
from pgsluice.worker.sinks.search.field_values import Converter
from pgsluice.worker.sinks.search.mapping_file import MappingFile
from pgsluice.worker.sinks.search.server_kind import Dialect, Properties

KEY_FIELD = "_key"
WHOLE_FIELD = "%whole"
"""Has values that no index takes as they are, by their fields' names. No column's field has this name (``field_name``)."""
LONGEST_KEYWORD = 8191  # characters of at most four bytes: Lucene's longest term has 32,766 bytes
GC_DELETES = "10m"
"""Time that the server remembers the version of a deleted document: longer than any late request of an abandoned task."""

WHILE_FILLED: dict[str, Any] = {"number_of_replicas": 0, "refresh_interval": "-1"}
"""Settings of an index that is not read yet."""

_MOST_SCALED_DIGITS = 18  # of a signed number of 64 bits
_MOST_SCALE = 9
_MOST_DIMENSIONS = 4096
DEEPEST = 200
"""The most levels a document may be nested. OpenSearch 2.19 takes 300, and never answers to 800 of a ``flat_object``:
its thread ends. Where a fatal error ends the node, a row would end one node after the other."""

_META_FIELDS = frozenset(
    {
        "_id",
        "_index",
        "_source",
        "_type",
        "_routing",
        "_field_names",
        "_ignored",
        "_meta",
        "_size",
        "_doc_count",
        "_tier",
        "_seq_no",
    }
    | {"_version", "_primary_term", "_nested_path", "_data_stream_timestamp", "_feature", "_name", "_uid", "_parent", KEY_FIELD}
)
_MODIFIED = re.compile(r"\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Field:
    """``definition`` is the mapping's; ``convert`` makes JSON of the column's values."""

    name: str
    definition: dict[str, Any]
    convert: Converter


@dataclass(frozen=True, slots=True)
class TableMapping:
    """``fields`` are sorted like the table's columns."""

    table: Table
    fields: tuple[Field, ...]
    settings: dict[str, Any]

    @classmethod
    def of(cls, table: Table, overrides: MappingFile, dialect: Dialect) -> TableMapping:
        own = overrides.columns_of(table)
        fields = tuple(_field(column, own.get(column.name), dialect) for column in table.columns)
        return cls(table, fields, overrides.settings_of(table))

    @property
    def properties(self) -> Properties:
        """Returns the properties for an index's mapping."""
        key = {"type": "keyword", "index": False, "doc_values": False}
        own = {KEY_FIELD: key, WHOLE_FIELD: {"type": "object", "enabled": False}}
        return {field.name: field.definition for field in self.fields} | own

    def index_body(
        self,
        aliases: dict[str, Any],
        meta: dict[str, Any],
        *,
        filling: bool = False,
        properties: Properties | None = None,
        usual: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Returns the body of a new index. ``filling``: it is not read before it is full, so it need not be searchable.
        ``properties`` are its fields, unless they are the table's; ``usual`` are settings, unless the file overrides
        them."""
        own: dict[str, Any] = {"gc_deletes": GC_DELETES, "mapping.total_fields.limit": max(1000, 4 * len(self.fields))}
        return {
            "settings": {"index": own | dict(usual) | self.settings | (WHILE_FILLED if filling else {})},
            "mappings": {"dynamic": "strict", "_meta": meta, "properties": properties or self.properties},
            "aliases": aliases,
        }

    @property
    def settings_when_filled(self) -> dict[str, Any]:
        """Returns settings that replace those of filling; None is the server's default."""
        return {name: self.settings.get(name) for name in WHILE_FILLED}


def field_name(column: str) -> str:
    """Returns a column's name as a field's: what has a meaning there (a dot makes an object) is replaced by its code,
    as in a URL."""
    escaped = "".join(f"%{ord(each):02X}" if each in ".*%" or ord(each) < 0x20 else each for each in column)
    if escaped in _META_FIELDS:
        return "%5F" + escaped[1:]
    return escaped if escaped.strip() else "".join(f"%{ord(each):02X}" for each in column)


def _field(column: Column, override: dict[str, Any] | None, dialect: Dialect) -> Field:
    definition, convert = _usual(column, dialect)
    if override is not None:
        return Field(field_name(column.name), override, _overriding(column, override, convert))
    return Field(field_name(column.name), definition, convert)


def _overriding(column: Column, override: dict[str, Any], usual: Converter) -> Converter:
    """Returns the converter of values for a field of another type."""
    kind = override["type"]
    name = base_type(column)
    if kind.endswith("_range"):
        return values.bounds_of(_RANGE_ELEMENTS.get(name, values.STRINGS))
    if name in ("json", "jsonb"):
        is_flat = kind in ("flattened", "flat_object")
        return values.objects if is_flat or kind in ("object", "nested") else values.STRINGS
    return usual


_RANGE_ELEMENTS: dict[str, Converter] = {
    "int4range": values.INTEGERS,
    "int8range": values.INTEGERS,
    "numrange": values.finite_numbers,
    "daterange": values.dates,
    "tsrange": values.timestamps,
    "tstzrange": values.timestamps,
}

Usual = tuple[dict[str, Any], Converter]


def _usual(column: Column, dialect: Dialect) -> Usual:
    name = base_type(column)
    if column.type_name.endswith("[]"):
        definition, convert = _scalar(name, -1, column.type_name[:-2], dialect)
        return definition, values.array_of(convert)
    return _scalar(name, column.typmod, column.type_name, dialect)


def _scalar(name: str, typmod: int, type_name: str, dialect: Dialect) -> Usual:
    make = _MAKERS.get(name)
    if make is not None:
        return make()
    match name:
        case "numeric":
            return _numeric(typmod, type_name)
        case "json" | "jsonb":
            return _flat(dialect), values.objects
        case "vector":
            return _vector(type_name, dialect)
        case _:
            return _keyword(), values.STRINGS


def _keyword(**more: Any) -> dict[str, Any]:
    return {"type": "keyword", "ignore_above": LONGEST_KEYWORD, **more}


def _text() -> dict[str, Any]:
    return {"type": "text", "fields": {"keyword": _keyword()}}


def _address() -> dict[str, Any]:
    return _keyword(fields={"ip": {"type": "ip", "ignore_malformed": True}})


_DATE = {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
"""Years after 9999, which Elasticsearch 9 does not read, are stored and not searched."""

_MAKERS: dict[str, Callable[[], Usual]] = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid"), lambda: ({"type": "long"}, values.INTEGERS)),
    "boolean": lambda: ({"type": "boolean"}, values.BOOLEANS),
    "real": lambda: ({"type": "float"}, values.finite_numbers),
    "double precision": lambda: ({"type": "double"}, values.finite_numbers),
    **dict.fromkeys(("text", "character varying", "citext"), lambda: (_text(), values.STRINGS)),
    "bytea": lambda: (_keyword(), values.base64_texts),
    "date": lambda: (dict(_DATE), values.dates),
    **dict.fromkeys(("timestamp without time zone", "timestamp with time zone"), lambda: (dict(_DATE), values.timestamps)),
    **dict.fromkeys(("inet", "cidr"), lambda: (_address(), values.STRINGS)),
}
"""Fields by the type's name as ``format_type`` writes it, without its modifiers."""

_NAMES = {
    16: "boolean",
    17: "bytea",
    20: "bigint",
    21: "smallint",
    23: "integer",
    25: "text",
    26: "oid",
    114: "json",
    650: "cidr",
    700: "real",
    701: "double precision",
    869: "inet",
    1043: "character varying",
    1082: "date",
    1114: "timestamp without time zone",
    1184: "timestamp with time zone",
    1700: "numeric",
    3802: "jsonb",
}
"""Names of built-in types, by OID (pg_type.dat): a domain's name is no type's."""


def base_type(column: Column) -> str:
    """Returns the type's name, for an array its elements'; without modifiers, and without a schema."""
    if column.type_oid in _NAMES:
        return _NAMES[column.type_oid]
    name = _MODIFIED.sub("", column.type_name.removesuffix("[]")).strip()
    return name if name.startswith('"') else name.rpartition(".")[2]


def usual_converter(column: Column) -> Converter:
    """Returns the default converter for the column's type (arrays: the element type). A mapping file may override it.
    Same for Elasticsearch and OpenSearch."""
    return _scalar(base_type(column), column.typmod, column.type_name.removesuffix("[]"), Dialect.OPENSEARCH)[1]


def numeric_modifiers(column: Column) -> tuple[int, int]:
    """Returns precision and scale; (0, 0) where none is declared."""
    return _declared(column.typmod, column.type_name)


def _declared(typmod: int, type_name: str) -> tuple[int, int]:
    """The typmod is precision << 16 | scale (11 bits, signed), plus 4; an array's is in its type's name."""
    declared = re.search(r"\((\d+),(-?\d+)\)", type_name)
    return (int(declared[1]), int(declared[2])) if declared else _modifiers(typmod)


def _numeric(typmod: int, type_name: str) -> Usual:
    precision, scale = _declared(typmod, type_name)
    if 0 < precision <= _MOST_SCALED_DIGITS and 0 <= scale <= _MOST_SCALE:
        return {"type": "scaled_float", "scaling_factor": 10**scale}, values.finite_numbers
    return _keyword(fields={"n": {"type": "double", "ignore_malformed": True}}), values.texts_of_numbers


def _modifiers(typmod: int) -> tuple[int, int]:
    if typmod < 4:
        return 0, 0
    return (typmod - 4) >> 16 & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400


def _flat(dialect: Dialect) -> dict[str, Any]:
    match dialect:
        case Dialect.OPENSEARCH:
            return {"type": "flat_object"}
        case Dialect.ELASTICSEARCH:
            return {"type": "flattened", "ignore_above": LONGEST_KEYWORD, "depth_limit": DEEPEST}
        case unreachable:
            assert_never(unreachable)


def _vector(type_name: str, dialect: Dialect) -> Usual:
    """One without dimensions, or with too many, cannot be searched by nearness, and is a list of numbers."""
    declared = re.search(r"\((\d+)\)", type_name)
    if declared is None or (dialect is Dialect.ELASTICSEARCH and int(declared[1]) > _MOST_DIMENSIONS):
        return {"type": "float"}, values.vectors
    match dialect:
        case Dialect.OPENSEARCH:
            return {"type": "knn_vector", "dimension": int(declared[1])}, values.vectors
        case Dialect.ELASTICSEARCH:
            return {"type": "dense_vector", "dims": int(declared[1])}, values.vectors
        case unreachable:
            assert_never(unreachable)
