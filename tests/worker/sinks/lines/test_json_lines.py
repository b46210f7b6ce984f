"""What a change looks like as a JSON line."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.rows.changes import MessageChanges, TableChanges, Truncation
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
from pgsluice.worker.sinks.lines.json_lines import encode_copied, encode_lines, format_timestamp

LINES_PER_SECOND_AND_CORE = 300_000  # so that encoding is the smaller part of the file sink's 150,000 changes/s on two cores


def parsed(changes: MessageChanges, *, transactions: bool = False) -> list[dict[str, Any]]:
    """Each line parsed, numbers with a point or an exponent exactly."""
    output = b"".join(encode_lines(changes, transactions=transactions))
    assert b"\r" not in output
    *lines, rest = output.split(b"\n")
    assert rest == b""
    return [json.loads(line, parse_float=Decimal) for line in lines]


def after(type_name: str, value: Value) -> Any:
    """What stands for ``value`` in a column of that type."""
    values = table("t", "id bigint", f"v {type_name}")
    (line,) = parsed(message(1, insert(values, b"1", value)))
    return line["after"]["v"]


def raw_after(type_name: str, value: bytes) -> bytes:
    (line,) = encode_lines(message(1, insert(table("t", f"v {type_name}", key=()), value)))
    return line.partition(b'"after":{"v":')[2].partition(b'},"xid"')[0]


ORDERS = table("shop.orders", "id bigint", "total numeric", "note text")
ORDERS_FULL = table("shop.orders", "id bigint", "total numeric", "note text", identity=ReplicaIdentity.FULL)
LINES = table("shop.lines", "order_id bigint", "line integer", "sku text", key=("line", "order_id"))


def test_an_insert_has_everything_a_consumer_needs() -> None:
    changes = message_of(3, transaction(0x16_B374D848, insert(ORDERS, b"7", b"12.50", None), xid=731, committed_at=1_000_001))
    assert encode_lines(changes) == [
        b'{"position":"16/B374D848:1","operation":"INSERT","schema":"shop","table":"orders","key":{"id":7},"before":null,'
        b'"after":{"id":7,"total":12.50,"note":null},"xid":731,"committed_at":"2000-01-01T00:00:01.000001Z"}\n'
    ]


@pytest.mark.parametrize(
    ("type_name", "value", "expected"),
    [
        ("smallint", b"-32768", -32768),
        ("integer", b"2147483647", 2147483647),
        ("bigint", b"-9223372036854775808", -(2**63)),
        ("bigint", b"9007199254740993", 2**53 + 1),
        ("oid", b"4294967295", 2**32 - 1),
        ("boolean", b"t", True),
        ("boolean", b"f", False),
        ("bytea", b"\\x00ff", "\\x00ff"),
        ("text", b"", ""),
        (
            "text",
            'quote " backslash \\ line\nfeed \u2028 \U0001f600'.encode(),
            'quote " backslash \\ line\nfeed \u2028 \U0001f600',
        ),
        ("timestamptz", b"2026-01-31 09:15:00.123456+00", "2026-01-31 09:15:00.123456+00"),
        ("uuid", b"0e2c1a3e-1f6f-4e0c-9d4e-3c1f3f5f8f11", "0e2c1a3e-1f6f-4e0c-9d4e-3c1f3f5f8f11"),
        ("integer[]", b"{1,2,NULL}", "{1,2,NULL}"),
        ("mood", b"happy", "happy"),
        ("numeric", b"NaN", "NaN"),
        ("numeric", b"-Infinity", "-Infinity"),
        ("float8", b"Infinity", "Infinity"),
        ("real", b"NaN", "NaN"),
    ],
)
def test_a_value_has_the_json_type_of_its_column(type_name: str, value: bytes, expected: object) -> None:
    found = after(type_name, value)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("type_name", ["bigint", "numeric", "float8", "boolean", "text", "json", "jsonb", "bytea"])
def test_an_sql_null_is_null_in_every_type(type_name: str) -> None:
    assert after(type_name, None) is None


@pytest.mark.parametrize(
    ("type_name", "digits"),
    [
        ("numeric", b"0.00"),
        ("numeric", b"-12345678901234567890123456789.000000000000000000001"),
        ("numeric", b"9" * 1000),
        ("float8", b"1e+20"),
        ("float8", b"1.7976931348623157e+308"),
        ("float8", b"5e-324"),
        ("float8", b"-0"),
        ("real", b"1e-05"),
    ],
)
def test_a_number_keeps_every_digit_the_server_sent(type_name: str, digits: bytes) -> None:
    assert raw_after(type_name, digits) == digits
    assert json.loads(digits, parse_int=Decimal, parse_float=Decimal) == Decimal(digits.decode())


@pytest.mark.parametrize("type_name", ["json", "jsonb"])
@pytest.mark.parametrize(
    "document",
    [
        b'{"big": 9007199254740993, "exact": 0.10000000000000000000001, "twice": 1, "twice": 2}',
        b'"text with \\n and \\u0041"',
        b"null",
        b"[1, [2, [3, []]]]",
        '{"é": "\u2028"}'.encode(),
    ],
)
def test_json_is_embedded_to_the_letter(type_name: str, document: bytes) -> None:
    assert raw_after(type_name, document) == document


def test_json_with_line_breaks_stays_on_one_line() -> None:
    assert after("json", b'{\r\n  "a": [1,\n 2],\r "b": "x\\ny"\n}\n') == {"a": [1, 2], "b": "x\ny"}


@pytest.mark.parametrize(
    ("type_name", "value"), [("text", b"\xff"), ("json", b'"\xc3"'), ("boolean", b"yes"), ("bigint", b"1.5"), ("numeric", b"")]
)
def test_a_value_that_is_not_of_its_type_is_refused_without_showing_it(type_name: str, value: bytes) -> None:
    with pytest.raises(WireError, match=r"public\.t\.v") as raised:
        after(type_name, value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert not value or value.decode(errors="replace") not in str(raised.value).replace(type_name, "")


def test_an_update_without_an_old_row_has_the_new_key_and_no_before() -> None:
    (line,) = parsed(message(1, update(ORDERS, b"7", b"1", b"x")))
    assert (line["operation"], line["key"], line["before"]) == ("UPDATE", {"id": 7}, None)
    assert line["after"] == {"id": 7, "total": 1, "note": "x"}
    assert "unchanged" not in line


def test_a_changed_key_shows_the_old_one_before_and_the_new_one_as_key() -> None:
    (line,) = parsed(message(1, update(LINES, b"7", b"2", b"x", old=(b"7", b"1", None))))
    assert line["key"] == {"line": 2, "order_id": 7}
    assert line["before"] == {"order_id": 7, "line": 1}


def test_a_delete_has_the_key_of_the_old_row() -> None:
    (line,) = parsed(message(1, delete(LINES, b"7", b"1", b"x")))
    assert (line["operation"], line["key"], line["after"]) == ("DELETE", {"line": 1, "order_id": 7}, None)
    assert line["before"] == {"order_id": 7, "line": 1}


def test_a_full_old_row_is_all_there() -> None:
    removed, changed = parsed(
        message(1, delete(ORDERS_FULL, b"7", b"1", None), update(ORDERS_FULL, b"8", b"3", b"y", old=(b"8", b"2", b"x")))
    )
    assert (removed["key"], removed["before"]) == ({"id": 7}, {"id": 7, "total": 1, "note": None})
    assert changed["before"] == {"id": 8, "total": 2, "note": "x"}


def test_a_table_without_a_key_has_a_null_key() -> None:
    log = table("log", "line text", key=(), identity=ReplicaIdentity.FULL)
    assert [line["key"] for line in parsed(message(1, insert(log, b"a"), delete(log, b"a")))] == [None, None]


def test_the_key_of_a_table_identified_by_an_index_is_that_index() -> None:
    users = table("u", "id bigint", "name text", identity=ReplicaIdentity.INDEX, identity_columns=("name",))
    (line,) = parsed(message(1, delete(users, None, b"ada")))
    assert (line["key"], line["before"]) == ({"name": "ada"}, {"name": "ada"})


def test_a_column_that_was_not_sent_is_named_and_left_out() -> None:
    lines = parsed(message(1, update(ORDERS, b"7", b"1", UNCHANGED), update(ORDERS, b"8", b"1", b"unchanged")))
    assert lines[0]["after"] == {"id": 7, "total": 1}
    assert lines[0]["unchanged"] == ["note"]
    assert lines[1]["after"] == {"id": 8, "total": 1, "note": "unchanged"}
    assert "unchanged" not in lines[1]


def test_a_column_that_was_not_sent_is_taken_from_a_full_old_row() -> None:
    (line,) = parsed(message(1, update(ORDERS_FULL, b"7", b"2", UNCHANGED, old=(b"7", b"1", b"long"))))
    assert line["after"] == {"id": 7, "total": 2, "note": "long"}
    assert "unchanged" not in line


def test_a_key_column_that_was_not_sent_is_taken_from_the_old_key() -> None:
    documents = table("d", "id text", "n bigint")
    (line,) = parsed(message(1, update(documents, UNCHANGED, b"2", old=(b"long", None))))
    assert line["key"] == {"id": "long"}


def test_columns_of_a_delete_beside_updates_are_not_taken_for_unchanged() -> None:
    lines = parsed(
        message(1, insert(ORDERS, b"1", b"1", b"a"), delete(ORDERS, b"1", None, None), update(ORDERS, b"2", b"2", None))
    )
    assert [line["operation"] for line in lines] == ["INSERT", "DELETE", "UPDATE"]
    assert [line["after"] for line in lines] == [{"id": 1, "total": 1, "note": "a"}, None, {"id": 2, "total": 2, "note": None}]


def test_a_truncate_has_a_line_for_each_table_at_one_position() -> None:
    lines = parsed(message(1, insert(ORDERS, b"1", None, None), truncate(ORDERS, LINES, cascade=True, restart_identity=True)))
    assert [(line["table"], line["position"]) for line in lines[1:]] == [("orders", "0/3E8:2"), ("lines", "0/3E8:2")]
    for line in lines[1:]:
        assert line["operation"] == "TRUNCATE"
        assert line["key"] is line["before"] is line["after"] is None
        assert line["cascade"] is line["restart_identity"] is True


def test_a_plain_truncate_has_no_options() -> None:
    (line,) = parsed(message(1, truncate(ORDERS)))
    assert not {"cascade", "restart_identity"} & line.keys()


def test_a_copied_row_is_read_without_a_position_and_names_its_snapshot() -> None:
    assert encode_copied(copied(9, ORDERS, (b"7", b"12.50", None), (b"8", b"NaN", b"a\tb"), snapshot="16B374D80-5f")) == [
        b'{"position":null,"operation":"READ","schema":"shop","table":"orders","key":{"id":7},"before":null,'
        b'"after":{"id":7,"total":12.50,"note":null},"snapshot":"16B374D80-5f"}\n',
        b'{"position":null,"operation":"READ","schema":"shop","table":"orders","key":{"id":8},"before":null,'
        b'"after":{"id":8,"total":"NaN","note":"a\\tb"},"snapshot":"16B374D80-5f"}\n',
    ]


def test_a_copied_row_without_a_key_has_a_null_key() -> None:
    log = table("log", "line text", key=(), identity=ReplicaIdentity.FULL)
    assert json.loads(encode_copied(copied(9, log, (b"a",)))[0])["key"] is None


def test_a_message_without_copied_rows_has_no_line() -> None:
    assert encode_copied(copied(9, ORDERS)) == []


def test_a_table_that_is_copied_anew_has_one_line_that_takes_its_rows_back() -> None:
    assert encode_copied(restart(9, ORDERS, snapshot="second")) == [
        b'{"position":null,"operation":"RESTART","schema":"shop","table":"orders","key":null,"before":null,"after":null,'
        b'"snapshot":"second"}\n'
    ]


def test_a_table_without_columns_has_empty_rows() -> None:
    empty = table("e", key=(), identity=ReplicaIdentity.FULL)
    assert [(line["before"], line["after"]) for line in parsed(message(1, insert(empty), delete(empty)))] == [
        (None, {}),
        ({}, None),
    ]


def test_changes_a_rule_removed_leave_no_line_and_no_renumbering() -> None:
    changes = message(1, insert(ORDERS, b"1", None, None), insert(LINES, b"1", b"1", b"a"), insert(ORDERS, b"2", None, None))
    changes.parts.pop()
    assert [line["position"] for line in parsed(changes)] == ["0/3E8:1", "0/3E8:3"]


def test_a_message_of_a_continued_transaction_goes_on_counting() -> None:
    changes = message_of(2, transaction(0xAB, insert(ORDERS, b"1", None, None), first_ordinal=5_000, commits=False))
    assert [line["position"] for line in parsed(changes)] == ["0/AB:5000"]


def test_borders_of_transactions_stand_where_they_begin_and_commit() -> None:
    row = insert(ORDERS, b"1", None, None)
    changes = message_of(
        2,
        transaction(0x10, row, first_ordinal=9, xid=1),
        transaction(0x20, row, row, xid=2),
        transaction(0x30, row, xid=3, commits=False),
    )
    lines = parsed(changes, transactions=True)
    assert [(line["operation"], line["xid"]) for line in lines] == [
        ("INSERT", 1),
        ("COMMIT", 1),
        ("BEGIN", 2),
        ("INSERT", 2),
        ("INSERT", 2),
        ("COMMIT", 2),
        ("BEGIN", 3),
        ("INSERT", 3),
    ]
    assert lines[2] == {"operation": "BEGIN", "xid": 2, "commit_lsn": "0/20", "committed_at": "2000-01-01T00:00:00.000000Z"}


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "2000-01-01T00:00:00.000000Z"),
        (823_166_100_123_456, "2026-01-31T09:15:00.123456Z"),
        (-1, "1999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_timestamp_is_rfc_3339_in_utc(microseconds: int, text: str) -> None:
    assert format_timestamp(microseconds) == text


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
DOCUMENT = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
)
ROWS = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: f"{number:f}"),
    st.none() | TEXT,
    st.none() | st.booleans(),
    st.none() | DOCUMENT.map(lambda document: json.dumps(document, indent=1, ensure_ascii=False)),
)


@given(st.lists(st.tuples(ROWS, st.booleans())))
def test_every_row_of_every_table_comes_back_in_order(rows: list[tuple[tuple[Any, ...], bool]]) -> None:
    columns = ("id bigint", "n numeric", "s text", "b boolean", "j json")
    tables = (table("one", *columns), table("other", *columns))
    changes = [insert(tables[is_other], *map(as_sent, row)) for row, is_other in rows]
    lines = parsed(message(1, *changes))
    assert [line["position"] for line in lines] == [f"0/3E8:{i}" for i in range(1, len(rows) + 1)]
    for line, ((id_, number, text, boolean, document), is_other) in zip(lines, rows, strict=True):
        assert line["table"] == ("other" if is_other else "one")
        assert line["after"] == {
            "id": id_,
            "n": None if number is None else Decimal(number),
            "s": text,
            "b": boolean,
            "j": None if document is None else json.loads(document),
        }


def as_sent(value: object) -> bytes | None:
    match value:
        case None:
            return None
        case bool():
            return b"t" if value else b"f"
        case _:
            return str(value).encode()


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


def test_a_change_that_goes_to_several_tables_has_a_line_for_each() -> None:
    changes = message(1, insert(ORDERS, b"1", b"2.50", None), insert(ORDERS, b"2", b"3.50", None), truncate(ORDERS))
    rows, truncation = changes.parts
    assert isinstance(rows, TableChanges)
    archive = replace(ORDERS, schema="archive", origin=(ORDERS.schema, ORDERS.name))
    changes.parts[1:1] = [replace(rows, table=archive)]
    assert isinstance(truncation, Truncation)
    changes.parts[-1] = replace(truncation, tables=(ORDERS, archive))
    lines = parsed(changes)
    assert [(line["position"][-1], line["schema"]) for line in lines] == [
        (ordinal, schema) for ordinal in "123" for schema in ("shop", "archive")
    ]


def test_lines_say_which_column_is_which_when_they_are_asked_to() -> None:
    """By numbers that stay when a column is renamed; null where a stream of an early version does not tell."""
    numbered = replace(ORDERS, columns=tuple(replace(c, number=n) for c, n in zip(ORDERS.columns, (1, 4, 0), strict=True)))
    renamed = replace(numbered, columns=(*numbered.columns[:1], replace(numbered.columns[1], name="amount"), numbered.columns[2]))
    inserted = message(1, insert(numbered, b"7", b"1", None), truncate(numbered))
    one_by_one = message(2, update(renamed, b"7", b"2", UNCHANGED), delete(renamed, b"7", None, None))
    said = [json.loads(line) for part in (inserted, one_by_one) for line in encode_lines(part, column_ids=True)]
    said += [json.loads(line) for line in encode_copied(copied(1, renamed, (b"7", b"1", None)), column_ids=True)]
    before, after_renaming = {"id": 1, "total": 4, "note": None}, {"id": 1, "amount": 4, "note": None}
    assert [line.pop("columns", None) for line in said] == [before, None, after_renaming, after_renaming, after_renaming]
    plain = [json.loads(line) for part in (inserted, one_by_one) for line in encode_lines(part)]
    plain += [json.loads(line) for line in encode_copied(copied(1, renamed, (b"7", b"1", None)))]
    assert said == plain
