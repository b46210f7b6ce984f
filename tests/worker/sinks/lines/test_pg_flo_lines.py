"""What a change looks like in pg_flo's shape."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from pgsluice.shared.errors import WireError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Value
from pgsluice.testing.changes_builder import (
    copied,
    delete,
    insert,
    message,
    message_of,
    restart,
    table,
    transaction,
    truncate,
    update,
)
from pgsluice.worker.sinks.lines.pg_flo_lines import encode_copied, encode_lines

LINES_PER_SECOND_AND_CORE = 150_000

PG_FLO_KEYS = {"Type", "Schema", "Table", "ReplicationKey", "LSN", "EmittedAt", "NewTuple", "OldTuple"}

ORDERS = table("shop.orders", "id bigint", "total numeric", "note text")
ORDERS_FULL = table("shop.orders", "id bigint", "total numeric", "note text", identity=ReplicaIdentity.FULL)
LINES = table("shop.lines", "order_id bigint", "line integer", "sku text", key=("line", "order_id"))


def parsed(changes: MessageChanges) -> list[dict[str, Any]]:
    *lines, rest = b"".join(encode_lines(changes)).split(b"\n")
    assert rest == b""
    return [json.loads(line) for line in lines]


def new_value(type_name: str | tuple[str, int], value: Value) -> Any:
    (line,) = parsed(message(1, insert(table("t", "id bigint", f"v {type_name}"), b"1", value)))
    return line["NewTuple"]["v"]


def test_an_insert_has_pg_flos_keys_and_the_position() -> None:
    changes = message_of(3, transaction(0x16_B374D848, insert(ORDERS, b"7", b"12.50", None), xid=731, committed_at=1_000_001))
    assert encode_lines(changes) == [
        b'{"Type":"INSERT","Schema":"shop","Table":"orders","ReplicationKey":{"Type":"PRIMARY KEY","Columns":["id"]},'
        b'"LSN":"16/B374D848","EmittedAt":"2000-01-01T00:00:01.000001Z","Position":"16/B374D848:1",'
        b'"NewTuple":{"id":7,"total":"12.50","note":null}}\n'
    ]


@pytest.mark.parametrize(
    ("type_name", "value", "expected"),
    [
        ("smallint", b"-32768", -32768),
        ("bigint", b"9007199254740993", 2**53 + 1),
        ("oid", b"4294967295", "4294967295"),
        ("boolean", b"t", True),
        ("real", b"1.5", 1.5),
        ("float8", b"1e+20", 1e20),
        ("float8", b"NaN", "NaN"),
        ("float8", b"-Infinity", "-Infinity"),
        ("numeric", b"12.50", "12.50"),
        ("numeric", b"NaN", "NaN"),
        ("text", b'a "quoted" line\n', 'a "quoted" line\n'),
        ("uuid", b"0e2c1a3e-1f6f-4e0c-9d4e-3c1f3f5f8f11", "0e2c1a3e-1f6f-4e0c-9d4e-3c1f3f5f8f11"),
        ("bytea", b"\\x00ff10", base64.b64encode(b"\x00\xff\x10").decode()),
        ("bytea", b"\\x", ""),
        ("timestamptz", b"2026-01-31 09:15:00.1234+00", "2026-01-31T09:15:00.1234Z"),
        ("timestamp", b"2026-01-31 09:15:00", "2026-01-31T09:15:00Z"),
        ("date", b"2026-01-31", "2026-01-31T00:00:00Z"),
        ("timestamptz", b"infinity", "infinity"),
        ("timestamp", b"0044-03-15 12:00:00 BC", "0044-03-15 12:00:00 BC"),
        ("date", b"12026-01-31", "12026-01-31"),
        ("time", b"09:15:00", "09:15:00"),
        ("interval", b"1 day", "1 day"),
        ("jsonb", b'{"a": [1, null]}', {"a": [1, None]}),
        ("text[]", b'{a,"b,c","d\\"e",NULL,"NULL",""}', ["a", "b,c", 'd"e', None, "NULL", ""]),
        ("text[]", b"{{a,b},{c,d}}", [["a", "b"], ["c", "d"]]),
        ("text[]", b"{}", []),
        ("integer[]", b"{1,-2,NULL}", [1, -2, None]),
        ("integer[]", b"[0:1]={1,2}", [1, 2]),
        ("numeric[]", b"{1.50,NaN}", "{1.50,NaN}"),
        ("mood", b"happy", "happy"),
    ],
)
def test_a_value_has_the_json_of_pg_flo_without_its_defects(type_name: str, value: bytes, expected: object) -> None:
    found = new_value(type_name, value)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("type_name", ["bigint", "numeric", "boolean", "text", "jsonb", "bytea", "timestamptz", "text[]"])
def test_an_sql_null_is_null_in_every_type(type_name: str) -> None:
    assert new_value(type_name, None) is None


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("bytea", b"\\x0"),
        ("bytea", b"00beef"),
        ("timestamptz", b"2026-01-31 'now'"),
        ("integer[]", b"{1,x}"),
        ("text[]", b"none"),
        ("text", b"\xff"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused_without_showing_it(type_name: str, value: bytes) -> None:
    with pytest.raises(WireError, match=r"public\.t\.v") as raised:
        new_value(type_name, value)
    assert value.decode(errors="replace") not in str(raised.value)


def test_an_unchanged_value_is_left_out_and_named_and_not_null() -> None:
    (line,) = parsed(message(1, update(ORDERS, b"7", None, UNCHANGED)))
    assert line["NewTuple"] == {"id": 7, "total": None}
    assert line["Unchanged"] == ["note"]
    assert "OldTuple" not in line


def test_an_unchanged_value_that_the_old_row_holds_is_there() -> None:
    (line,) = parsed(message(1, update(ORDERS_FULL, b"7", b"2", UNCHANGED, old=(b"7", b"1", b"long"))))
    assert line["NewTuple"] == {"id": 7, "total": "2", "note": "long"}
    assert line["OldTuple"] == {"id": 7, "total": "1", "note": "long"}
    assert "Unchanged" not in line


def test_a_delete_has_the_columns_of_the_old_row_that_were_sent() -> None:
    (line,) = parsed(message(1, delete(LINES, b"7", b"1", b"x")))
    assert (line["Type"], line["OldTuple"]) == ("DELETE", {"order_id": 7, "line": 1})
    assert "NewTuple" not in line
    assert line.keys() == PG_FLO_KEYS - {"NewTuple"} | {"Position"}


def test_a_changed_key_has_both_rows() -> None:
    (line,) = parsed(message(1, update(LINES, b"7", b"2", b"x", old=(b"7", b"1", None))))
    assert line["NewTuple"]["line"] == 2
    assert line["OldTuple"] == {"order_id": 7, "line": 1}
    assert line["ReplicationKey"] == {"Type": "PRIMARY KEY", "Columns": ["line", "order_id"]}


def test_the_replication_key_says_what_identifies_a_row() -> None:
    unique = table("u", "id bigint", "name text", identity=ReplicaIdentity.INDEX, identity_columns=("name",))
    full = table("log", "line text", key=(), identity=ReplicaIdentity.FULL)
    nothing = table("events", "line text", key=(), identity=ReplicaIdentity.NOTHING)
    lines = parsed(message(1, insert(unique, b"1", b"ada"), insert(ORDERS_FULL, b"1", None, None), insert(full, b"a")))
    assert [line["ReplicationKey"] for line in lines] == [
        {"Type": "UNIQUE", "Columns": ["name"]},
        {"Type": "PRIMARY KEY", "Columns": ["id"]},
        {"Type": "FULL", "Columns": []},
    ]
    assert parsed(message(1, insert(nothing, b"a")))[0]["ReplicationKey"] == {"Type": "", "Columns": []}


def test_lines_of_several_tables_stand_in_commit_order() -> None:
    changes = message(1, insert(ORDERS, b"1", None, None), insert(LINES, b"1", b"1", b"a"), update(ORDERS, b"1", b"2", b"x"))
    assert [(line["Table"], line["Type"], line["Position"]) for line in parsed(changes)] == [
        ("orders", "INSERT", "0/3E8:1"),
        ("lines", "INSERT", "0/3E8:2"),
        ("orders", "UPDATE", "0/3E8:3"),
    ]


def test_a_truncate_has_a_line_for_each_table() -> None:
    lines = parsed(message(1, truncate(ORDERS, LINES)))
    assert [(line["Type"], line["Table"]) for line in lines] == [("TRUNCATE", "orders"), ("TRUNCATE", "lines")]
    assert not {"NewTuple", "OldTuple"} & lines[0].keys()


def test_a_copied_row_is_an_insert_at_its_snapshot() -> None:
    assert encode_copied(copied(9, ORDERS, (b"7", b"12.50", None), snapshot="00000016B374D848-5f0c2e11")) == [
        b'{"Type":"INSERT","Schema":"shop","Table":"orders","ReplicationKey":{"Type":"PRIMARY KEY","Columns":["id"]},'
        b'"LSN":"16/B374D848","EmittedAt":null,"Position":null,"NewTuple":{"id":7,"total":"12.50","note":null}}\n'
    ]
    (line,) = encode_copied(restart(9, ORDERS, snapshot="00000016B374D848-00000000"))
    assert json.loads(line)["Type"] == "RESTART"
    assert json.loads(encode_copied(copied(9, ORDERS, (b"7", None, None), snapshot="of another make"))[0])["LSN"] is None


def test_a_core_encodes_at_the_promised_rate() -> None:
    items = table("items", "id bigint", "a integer", "name text", "price numeric", "ok boolean", "at timestamptz", "note text")
    rows = [
        insert(items, b"%d" % i, b"1", b"name number %d" % i, b"12.50", b"t", b"2026-01-31 09:15:00+00", b"some longer text")
        for i in range(2000)
    ]
    changes = message(1, *rows)
    best_s = min(cpu_seconds(changes) for _ in range(5))
    assert len(rows) / best_s > LINES_PER_SECOND_AND_CORE


def cpu_seconds(changes: MessageChanges) -> float:
    started = time.process_time()
    encode_lines(changes)
    return time.process_time() - started
