"""Every format writes what it is said to write, to the byte: ``golden/`` has a file for each.

``python -m tests.worker.sinks.lines.test_line_encoding`` writes them anew.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.definition import TableGone
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.changes_builder import copied, delete, insert, message, restart, table, truncate, update
from pgsluice.worker.sinks.lines.debezium_lines import DebeziumSource
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding, LineShape
from pgsluice.worker.sinks.lines.presentation import ColumnCase

GOLDEN = Path(__file__).parent / "golden"
ORDERS = table("shop.orders", "id bigint", "total numeric", "note text", "placedAt timestamptz", "due_on date")
FULL = replace(table("shop.people", "id integer", "name text", "active boolean", identity=ReplicaIdentity.FULL))
SOURCE = DebeziumSource("1.0", "shop", "shopdb")
CHANGES = (
    message(
        1,
        insert(ORDERS, b"7", b"12.50", b'say "yes"', b"2026-01-31 09:15:00.5+00", b"2026-02-01"),
        insert(ORDERS, b"8", b"0.10", None, None, None),
        update(ORDERS, b"7", b"13.00", UNCHANGED, b"2026-01-31 09:15:00.5+00", b"2026-02-02"),
        update(ORDERS, b"9", b"0.10", b"moved", None, None, old=(b"8", None, None, None, None)),
        delete(ORDERS, b"9", None, None, None, None),
        update(FULL, b"1", b"Ada", b"t", old=(b"1", b"Eva", b"f")),
        delete(FULL, b"1", b"Ada", b"t"),
        truncate(ORDERS, FULL),
    ),
    message(2, PublishedDefinition(TableGone("DROP TABLE", 16400, "shop", "orders"), None)),
)
COPIES = (restart(1, ORDERS), copied(2, ORDERS, (b"7", b"12.50", b"n", b"2026-01-31 09:15:00.5+00", b"1999-12-31")))
FORMATS = {
    "json": LineEncoding(transactions=True),
    "json-snake-without-before": LineEncoding(column_case=ColumnCase.SNAKE, include_before=False),
    "flat": LineEncoding(LineShape.FLAT),
    "pg-flo": LineEncoding(LineShape.PG_FLO),
    "pg-flo-camel": LineEncoding(LineShape.PG_FLO, column_case=ColumnCase.CAMEL),
    "debezium": LineEncoding(LineShape.DEBEZIUM, source=SOURCE),
    "debezium-without-before": LineEncoding(LineShape.DEBEZIUM, include_before=False, source=SOURCE),
}


def written(form: LineEncoding) -> bytes:
    lines = [line for rows in COPIES for line in form.encode_copied(rows)]
    return b"".join(lines + [line for changes in CHANGES for line in form.encode(changes)])


def values(*changes: MessageChanges, form: LineEncoding = FORMATS["debezium"]) -> list[dict[str, Any]]:
    return [json.loads(line) for each in changes for element in form.encode(each) for line in element.splitlines()]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_writes_its_golden_file(name: str) -> None:
    assert written(FORMATS[name]).decode() == (GOLDEN / f"{name}.jsonl").read_text()


DOCUMENTED_SOURCE = {
    "version",
    "connector",
    "name",
    "ts_ms",
    "snapshot",
    "db",
    "sequence",
    "schema",
    "table",
    "txId",
    "lsn",
    "xmin",
}
"""Of the ``source`` field, as Debezium documents it for PostgreSQL."""


def test_each_operation_has_the_fields_that_debezium_documents() -> None:
    lines = values(*CHANGES)
    assert [line["op"] for line in lines] == ["c", "c", "u", "d", "c", "d", "u", "d", "t", "t"]
    for line in lines:
        assert line.keys() >= {"before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction"}
        assert line["source"].keys() >= DOCUMENTED_SOURCE
        assert (line["source"]["connector"], line["source"]["snapshot"]) == ("postgresql", "false")
    copies = [json.loads(line) for rows in COPIES for line in FORMATS["debezium"].encode_copied(rows)]
    assert [(line["op"], line["source"]["snapshot"]) for line in copies] == [("t", "true"), ("r", "true")]


def test_an_update_that_changes_the_key_is_a_delete_and_a_create() -> None:
    gone, came = values(message(1, update(ORDERS, b"9", b"1", b"n", None, None, old=(b"8", None, None, None, None))))
    assert (gone["op"], gone["before"], gone["after"]) == ("d", {"id": 8}, None)
    assert (came["op"], came["before"], came["after"]["id"]) == ("c", None, 9)
    assert gone["source"] == came["source"]


def test_a_large_value_that_was_not_sent_is_debeziums_placeholder_in_its_place() -> None:
    blobs = table("public.blobs", "id bigint", "data bytea", "note text", "n integer")
    (line,) = values(message(1, update(blobs, b"1", UNCHANGED, UNCHANGED, b"3")))
    assert list(line["after"].items()) == [
        ("id", 1),
        ("data", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("note", "__debezium_unavailable_value"),
        ("n", 3),
    ]


@pytest.mark.parametrize(
    ("type_name", "typmod", "text", "expected"),
    [
        ("date", -1, b"1970-01-02", 1),
        ("date", -1, b"2000-02-29", 11016),
        ("date", -1, b"0001-01-01 BC", -719528),
        ("date", -1, b"12026-01-01", 3672879),
        ("date", -1, b"infinity", 2**31 - 1),
        ("timestamp", -1, b"1970-01-01 00:00:01.000002", 1_000_002),
        ("timestamp", 6, b"1969-12-31 23:59:59.5", -500_000),
        ("timestamp", 3, b"1970-01-01 00:00:01.002", 1002),
        ("timestamp", -1, b"-infinity", -9223372036832400000),
        ("timestamptz", -1, b"2026-01-31 09:15:00.123456+00", "2026-01-31T09:15:00.123456Z"),
        ("time", -1, b"00:00:01.5", 1_500_000),
        ("time", 0, b"24:00:00", 86_400_000),
        ("interval", -1, b"1 mon 2 days -00:00:01.5", 2_629_800_000_000 + 172_800_000_000 - 1_500_000),
        ("interval", -1, b"-3 days", -259_200_000_000),
        ("interval", -1, b"00:00:00", 0),
        ("interval", -1, b"infinity", 2**63 - 1),
        ("interval", -1, b"-infinity", -(2**63)),
        ("bytea", -1, b"\\x00ff", "AP8="),
        ("numeric", -1, b"12.50", "12.50"),
        ("jsonb", -1, b'{"a": 1}', '{"a": 1}'),
        ("boolean", -1, b"t", True),
        ("oid", -1, b"4294967295", 4294967295),
        ("float8", -1, b"NaN", "NaN"),
        ("integer[]", -1, b"{1,NULL}", [1, None]),
    ],
)
def test_a_value_is_what_debezium_makes_of_its_type(type_name: str, typmod: int, text: bytes, expected: object) -> None:
    rows = table("public.t", "id bigint", f"v {type_name}")
    rows = replace(rows, columns=(rows.columns[0], replace(rows.columns[1], typmod=typmod)))
    (line,) = values(message(1, insert(rows, b"1", text)))
    found = line["after"]["v"]
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (ColumnCase.AS_IS, ["orderId", "HTTPStatus", "net price", "x"]),
        (ColumnCase.LOWER, ["orderid", "httpstatus", "net price", "x"]),
        (ColumnCase.UPPER, ["ORDERID", "HTTPSTATUS", "NET PRICE", "X"]),
        (ColumnCase.SNAKE, ["order_id", "http_status", "net_price", "x"]),
        (ColumnCase.CAMEL, ["orderId", "httpStatus", "netPrice", "x"]),
    ],
)
def test_columns_are_spelled_in_the_case_that_was_asked_for(case: ColumnCase, expected: list[str]) -> None:
    assert [case.spell(name) for name in ("orderId", "HTTPStatus", "net price", "x")] == expected


def test_two_columns_that_one_case_makes_the_same_are_refused() -> None:
    rows = table("public.t", "id bigint", "Id bigint")
    with pytest.raises(TerminalError, match=r"columns id and Id of public\.t are both 'id' with column-case: lower"):
        LineEncoding(column_case=ColumnCase.LOWER).encode(message(1, insert(rows, b"1", b"2")))


def test_without_before_a_value_that_was_not_sent_is_still_taken_from_the_old_row() -> None:
    (line,) = values(
        message(1, update(FULL, b"1", UNCHANGED, b"t", old=(b"1", b"Eva", b"f"))), form=LineEncoding(include_before=False)
    )
    assert (line["before"], line["after"]) == (None, {"id": 1, "name": "Eva", "active": True})


@pytest.mark.parametrize("shape", LineShape)
def test_a_changed_key_is_told_without_before_too(shape: LineShape) -> None:
    changed = message(1, update(ORDERS, b"9", b"1", b"n", None, None, old=(b"8", None, None, None, None)))
    moved = message(1, update(FULL, b"2", b"Eva", b"t", old=(b"1", b"Eva", b"t")))
    for each in (changed, moved):
        assert LineEncoding(shape, include_before=False).encode(each) == LineEncoding(shape).encode(each)


def test_a_column_with_a_name_of_the_flat_layout_is_refused() -> None:
    rows = table("public.t", "id bigint", "_table text")
    with pytest.raises(TerminalError, match=r"column _table of public\.t has a name that row-layout: flat uses itself"):
        LineEncoding(LineShape.FLAT).encode(message(1, insert(rows, b"1", b"2")))


def write_golden() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, form in FORMATS.items():
        (GOLDEN / f"{name}.jsonl").write_bytes(written(form))


if __name__ == "__main__":
    write_golden()
