"""Fields of every kind of column, and the JSON of their values, as a server takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table
from pgsluice.testing.changes_builder import table
from pgsluice.worker.sinks.search.bulk import DONE, Operation, field_in, send_bulk
from pgsluice.worker.sinks.search.document import DocumentForm
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.mapping import TableMapping, field_name
from pgsluice.worker.sinks.search.mapping_file import load_mapping
from pgsluice.worker.sinks.search.server_connection import ServerConnection
from pgsluice.worker.sinks.search.server_kind import Dialect
from tests.servers.opensearch import SearchServer
from tests.worker.sinks.search.sinks import NO_OVERRIDES, search_settings

KEYWORD = {"type": "keyword", "ignore_above": 8191}

CASES: list[tuple[str, int, int, str, bytes, Any]] = [
    # type name, OID, typmod, type of the field, PostgreSQL's text, value in the document
    ("smallint", 21, -1, "long", b"-5", -5),
    ("bigint", 20, -1, "long", b"9223372036854775807", 9223372036854775807),
    ("numeric(10,2)", 1700, (10 << 16 | 2) + 4, "scaled_float", b"12.50", 12.5),
    ("numeric(10,2)", 1700, (10 << 16 | 2) + 4, "scaled_float", b"NaN", None),
    ("numeric(38,10)", 1700, (38 << 16 | 10) + 4, "keyword", b"1234567890123456789012345678.0123456789", "="),
    ("numeric", 1700, -1, "keyword", b"Infinity", "Infinity"),
    ("real", 700, -1, "float", b"1.5e-05", 1.5e-05),
    ("double precision", 701, -1, "double", b"-Infinity", None),
    ("boolean", 16, -1, "boolean", b"t", True),
    ("text", 25, -1, "text", 'a "quoted"\nline ü'.encode(), 'a "quoted"\nline ü'),
    ("text", 25, -1, "text", b"x" * 40_000, "="),
    ("character varying(10)", 1043, 14, "text", b"v", "v"),
    ("character(3)", 1042, 7, "keyword", b"ab ", "ab "),
    ("uuid", 2950, -1, "keyword", b"6ba7b810-9dad-11d1-80b4-00c04fd430c8", "="),
    ("shop.mood", 99_999, -1, "keyword", b"happy", "happy"),
    ("bytea", 17, -1, "keyword", b"\\x0001ff", "AAH/"),
    ("date", 1082, -1, "date", b"2026-01-31", "2026-01-31"),
    ("date", 1082, -1, "date", b"infinity", None),
    ("date", 1082, -1, "date", b"0044-03-15 BC", "-0043-03-15"),
    ("timestamp without time zone", 1114, -1, "date", b"2026-01-31 09:15:00.123456", "2026-01-31T09:15:00.123456Z"),
    ("timestamp with time zone", 1184, -1, "date", b"2026-01-31 09:15:00+00", "2026-01-31T09:15:00Z"),
    ("timestamp with time zone", 1184, -1, "date", b"2026-01-31 09:15:00-03:30", "2026-01-31T09:15:00-03:30"),
    ("interval", 1186, -1, "keyword", b"1 mon 3 days", "="),
    ("inet", 869, -1, "keyword", b"10.0.0.1", "="),
    ("int4range", 3904, -1, "keyword", b"[1,5)", "="),
    ("jsonb", 3802, -1, "flat_object", b'{"a": 1.50, "b": [1, 2]}', {"a": 1.5, "b": [1, 2]}),
    ("json", 114, -1, "flat_object", b'{"a":\n1}', {"a": 1}),
    ("jsonb", 3802, -1, "flat_object", b"[1, 2]", {"value": [1, 2]}),
    ("jsonb", 3802, -1, "flat_object", b"null", None),
    ("integer[]", 1007, -1, "long", b"{1,NULL,3}", [1, None, 3]),
    ("integer[]", 1007, -1, "long", b"[0:1]={{1,2},{3,4}}", [[1, 2], [3, 4]]),
    ("text[]", 1009, -1, "text", rb'{a,"b \"c\",","NULL",NULL,""}', ["a", 'b "c",', "NULL", None, ""]),
    ("numeric(6,2)[]", 1231, -1, "scaled_float", b"{1.50,NaN}", [1.5, None]),
    ("boolean[]", 1000, -1, "boolean", b"{}", []),
]


def one_column(type_name: str, type_oid: int, typmod: int) -> Table:
    key = Column("id", 20, "bigint", -1, True, 1, True, "", "")
    column = Column("value", type_oid, type_name, typmod, False, None, False, "", "")
    return Table(4711, "shop", "typed", ReplicaIdentity.DEFAULT, (key, column))


@pytest.mark.parametrize(("type_name", "oid", "typmod", "field", "text", "value"), CASES)
def test_a_value_of_each_type(type_name: str, oid: int, typmod: int, field: str, text: bytes, value: Any) -> None:
    typed = one_column(type_name, oid, typmod)
    mapping = TableMapping.of(typed, NO_OVERRIDES, Dialect.OPENSEARCH)
    assert mapping.properties["value"]["type"] == field
    (document,) = DocumentForm(mapping, "t").documents([[b"1"], [text]], 1)
    read = json.loads(document)["value"]
    assert read == (text.decode() if value == "=" else value)
    assert document.count(b"\n") == 1


def test_a_server_takes_a_document_of_all_types(search_server: SearchServer, group: str) -> None:
    columns = [Column("id", 20, "bigint", -1, True, 1, True, "", "")]
    columns += [Column(f"c{i}", oid, name, typmod, False, None, False, "", "") for i, (name, oid, typmod, *_) in enumerate(CASES)]
    typed = Table(4711, "shop", "typed", ReplicaIdentity.DEFAULT, tuple(columns))
    connection = ServerConnection(search_settings(search_server.url, group))
    catalog = IndexCatalog(connection, search_settings(search_server.url, group), NO_OVERRIDES)
    generation = catalog.ensured(typed)
    form = DocumentForm(catalog.mapping(typed), generation.write_alias)
    (document,) = form.documents([[b"1"], *([case[4]] for case in CASES)], 1)
    assert send_bulk(connection, [Operation(generation.write_alias, b'"1"', 1, 1, document)]) == [DONE]
    connection.close()


@pytest.mark.parametrize(
    ("column", "field"),
    [
        ("note", "note"),
        ("a.b", "a%2Eb"),
        ("_id", "%5Fid"),
        ("_key", "%5Fkey"),
        ("_own", "_own"),
        ("a*", "a%2A"),
        ("50%", "50%25"),
        (" ", "%20"),
    ],
)
def test_a_field_is_called_as_its_column_where_that_has_no_other_meaning(column: str, field: str) -> None:
    assert field_name(column) == field


def test_elasticsearch_calls_some_fields_otherwise() -> None:
    typed = table("shop.orders", "id bigint", "payload jsonb", "at vector(3)")
    fields = TableMapping.of(typed, NO_OVERRIDES, Dialect.ELASTICSEARCH).properties
    assert fields["payload"]["type"] == "flattened"
    assert fields["at"] == {"type": "dense_vector", "dims": 3}


def test_a_mapping_file_says_what_is_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(
        "tables:\n"
        "  shop.*: {settings: {number_of_shards: 3}}\n"
        "  orders:\n"
        "    columns:\n"
        "      note: {type: keyword, ignore_above: 10}\n"
        "      payload: {type: object, dynamic: true}\n"
        "      during: {type: long_range}\n"
    )
    typed = table("shop.orders", "id bigint", "note text", "payload jsonb", "during int4range")
    overrides = load_mapping(str(path))
    overrides.check_tables([typed])
    mapping = TableMapping.of(typed, overrides, Dialect.OPENSEARCH)
    assert mapping.index_body({}, {})["settings"]["index"]["number_of_shards"] == 3
    assert mapping.properties["note"] == {"type": "keyword", "ignore_above": 10}
    (document,) = DocumentForm(mapping, "t").documents([[b"1"], [b"n"], [b'{"a": 1}'], [b"[1,5)"]], 1)
    assert document == b'{"id":1,"note":"n","payload":{"a": 1},"during":{"gte":1,"lt":5}}\n'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("shop.orders: {}", "unknown key 'shop.orders'"),
        ("tables: {shop.orders: {fields: {}}}", "unknown key 'fields'"),
        ("tables: {shop.orders: {columns: {note: keyword}}}", "column 'note' of 'shop.orders' has no type"),
        ("tables: {shop.orders.x: {}}", "is not a table"),
    ],
)
def test_what_is_wrong_in_a_mapping_file_is_said_with_its_line(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(content)
    with pytest.raises(UsageError) as raised:
        load_mapping(str(path))
    assert sentence in str(raised.value)
    assert f"{path}:1" in str(raised.value)


@pytest.mark.parametrize(("pattern", "sentence"), [("shop.nothing", "no table matches"), ("orders", "has no column 'gone'")])
def test_what_a_mapping_file_says_of_no_column_is_found(tmp_path: Path, pattern: str, sentence: str) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(f"tables: {{{pattern}: {{columns: {{gone: {{type: keyword}}}}}}}}")
    with pytest.raises(UsageError, match=sentence):
        load_mapping(str(path)).check_tables([table("shop.orders", "id bigint")])


@pytest.mark.parametrize(
    ("reason", "field"),
    [
        ("failed to parse field [total] of type [long] in document with id '8'. Preview of field's value: 'field [x]'", "total"),
        ("mapping set to strict, dynamic introduction of [zz] within [_doc] is not allowed", "zz"),
        ('Document contains at least one immense term in field="note.keyword" (whose UTF8', "note.keyword"),
        ("something else: 'a value'", ""),
    ],
)
def test_of_a_reason_only_the_field_is_told(reason: str, field: str) -> None:
    assert field_in(reason) == field
