"""Comparisons say what the server says."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from pgsluice.rules.comparison import Comparison
from pgsluice.rules.contains import Contains
from pgsluice.rules.known_rows import NewRows
from pgsluice.rules.orderings import OPERATORS
from pgsluice.rules.truth import FALSE, NULL, TRUE
from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.rows.copy_text import decode_rows
from pgsluice.shared.wire.table import Table, Value
from pgsluice.testing.changes_builder import insert, message, table
from tests.servers import Database

ASCENDING = {
    "smallint": ["-32768", "-1", "0", "9", "10", "32767"],
    "bigint": ["-9223372036854775808", "-1", "9007199254740992", "9007199254740993", "9223372036854775807"],
    "numeric": ["-Infinity", "-1.5", "0", "0.1", "0.10000000000000000000001", "9" * 30, "9" * 30 + ".1", "Infinity", "NaN"],
    "real": ["-Infinity", "-3.4028235e+38", "0", "0.1", "3.4028235e+38", "Infinity", "NaN"],
    "double precision": ["-Infinity", "-1e-300", "0", "5e-324", "0.1", "1e300", "Infinity", "NaN"],
    "boolean": ["false", "true"],
    'text COLLATE "C"': ["", "A", "Z", "a", "aa", "b", "é", "\uffee", "\U0001f600"],
    "date": [
        "-infinity",
        "4713-01-01 BC",
        "0044-03-14 BC",
        "0044-03-15 BC",
        "0001-01-01",
        "2024-02-29",
        "9999-12-31",
        "10000-01-01",
        "5874897-12-31",
        "infinity",
    ],
    "timestamp": [
        "-infinity",
        "0044-03-15 12:00:00 BC",
        "2024-02-29 00:00:00",
        "2024-02-29 00:00:00.000001",
        "2024-02-29 00:00:00.5",
        "2024-02-29 00:00:01",
        "20000-01-01 00:00:00",
        "294276-12-31 23:59:59.999999",
        "infinity",
    ],
    "timestamptz": [
        "-infinity",
        "0044-03-15 12:00:00+00 BC",
        "2024-02-29 00:00:00+00",
        "2024-02-29 00:00:00.000001+00",
        "2024-02-29 02:00:00+01",
        "2024-02-29 01:00:00.5+00",
        "2024-02-29 01:00:01+00",
        "20000-01-01 00:00:00+00",
        "infinity",
    ],
    "time": ["00:00:00", "00:00:00.000001", "09:59:59.5", "12:00:00", "24:00:00"],
    "interval": [
        "-infinity",
        "-178000000 years",
        "-1 mon +29 days",
        "-00:00:00.000001",
        "0",
        "1 day -1 us",
        "1 day",
        "1 mon -1 us",
        "30 days",
        "1 year 2 mons 3 days 04:05:06.7",
        "infinity",
    ],
    "uuid": [
        "00000000-0000-0000-0000-000000000000",
        "0fffffff-ffff-ffff-ffff-ffffffffffff",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ],
    "inet": [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.0.0.0/16",
        "10.0.0.0",
        "10.0.0.1/8",
        "10.1.0.0/16",
        "192.168.0.1",
        "::/0",
        "::1/64",
        "::1",
    ],
    "cidr": ["10.0.0.0/8", "10.0.0.0/16", "10.0.1.0/24", "::/0", "2001:db8::/32"],
}
"""Every two of them are asked for, so a list need not be right to test."""

BUILDER_NAMES = {"double precision": "float8", 'text COLLATE "C"': "text"}
"""As ``changes_builder`` calls them, where that differs."""

SIGNS = dict(zip(OPERATORS, ("=", "<>", ">", "<", ">=", "<="), strict=True))

YEARS_FROM_1_TO_9999 = re.compile(r"\d{4}-[^B]*|-?infinity")
"""What a rules file can say of a date; the column may hold more."""


def answers(table_: Table, values: Sequence[Value], condition: Comparison | Contains) -> list[bool | None]:
    """What the condition says of each value of the table's second column."""
    (part,) = message(1, *(insert(table_, b"1", value) for value in values)).parts
    assert isinstance(part, TableChanges)
    rows = NewRows(part)
    truths = condition.bind(table_)(rows)
    assert not rows.failures
    return [{TRUE: True, FALSE: False, NULL: None}[truth] for truth in truths]


def one(type_name: str) -> Table:
    return table("probe", "id bigint", ("value", type_name))


def as_sent(database: Database, type_name: str, values: list[str]) -> list[bytes]:
    """The text in which the server sends the values."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET timezone = 'UTC'; SET extra_float_digits = 3")
        connection.execute(f"CREATE TEMP TABLE probe (n integer GENERATED ALWAYS AS IDENTITY, value {type_name})")
        cursor.executemany("INSERT INTO probe (value) VALUES (%s)", [(value,) for value in values])
        with cursor.copy("COPY (SELECT value FROM probe ORDER BY n) TO STDOUT") as copy:
            (column,) = decode_rows(b"".join(map(bytes, copy)), 1)
    return [value for value in column if isinstance(value, bytes)]


def servers_answers(database: Database, type_name: str, sign: str, values: list[str]) -> list[list[bool]]:
    """For each value, how all of them compare with it."""
    bare = type_name.removesuffix(' COLLATE "C"')
    rows = database.execute(
        f"SELECT array_agg((a.v::{bare}){type_name.removeprefix(bare)} {sign} b.v::{bare} ORDER BY a.n)"
        " FROM unnest(%s::text[]) WITH ORDINALITY a(v, n), unnest(%s::text[]) WITH ORDINALITY b(v, n) GROUP BY b.n ORDER BY b.n",
        [values, values],
    )
    return [row[0] for row in rows]


@pytest.mark.parametrize("type_name", ASCENDING)
def test_a_comparison_is_the_servers(type_name: str, source_database: Database) -> None:
    values = ASCENDING[type_name]
    sent = as_sent(source_database, type_name, values)
    probe = one(BUILDER_NAMES.get(type_name, type_name))
    for operator, sign in SIGNS.items():
        expected = servers_answers(source_database, type_name, sign, values)
        for constant, compared in zip(map(bytes.decode, sent), expected, strict=True):
            if type_name not in ("date", "timestamp", "timestamptz") or YEARS_FROM_1_TO_9999.fullmatch(constant):
                assert answers(probe, sent, Comparison("value", operator, constant)) == compared, (operator, constant)


@pytest.mark.parametrize(
    ("type_name", "value", "operator", "constant", "expected"),
    [
        ("integer", b"18", "gt", "17.5", True),
        ("integer", b"18", "eq", "18.0", True),
        ("integer", b"18", "lt", "1e3", True),
        ("integer", b"18", "lt", "Infinity", True),
        ("numeric", b"100.00", "eq", "100", True),
        ("numeric", b"0.30", "gt", "0.3", False),
        ("real", b"0.1", "eq", "0.1", True),
        ("boolean", b"t", "eq", "yes", True),
        ("boolean", b"t", "ne", "off", True),
        ("text", b"3", "eq", "3", True),
        ("text", b"10", "lt", "9", True),
        ("text", b"STRASSE", "eq", "stra\u00dfe", False),
        ("timestamp", b"2024-02-29 00:00:00", "eq", "2024-02-29", True),
        ("timestamp", b"2024-02-29 11:00:00", "eq", "2024-02-29T12:00:00+01:00", True),
        ("timestamptz", b"2024-02-29 11:00:00.5+00", "eq", "2024-02-29 11:00:00.500Z", True),
        ("timestamptz", b"2024-02-29 11:00:00+00", "gte", "2024-02-29T11:00:00", True),
        ("time", b"12:30:00", "eq", "12:30", True),
        ("interval", b"01:30:00", "eq", "90 minutes", True),
        ("interval", b"-1 days +02:00:00", "lt", "-20 hours", True),
        ("uuid", b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "eq", "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", True),
        ("inet", b"192.168.0.1", "eq", "192.168.0.1/32", True),
        ("character", b"ab   ", "eq", "ab", True),
        ("mood", b"happy", "eq", "happy", True),
    ],
)
def test_a_value_may_be_written_as_people_write_it(
    type_name: str, value: bytes, operator: str, constant: str, expected: bool
) -> None:
    assert answers(one(type_name), [value], Comparison("value", operator, constant)) == [expected]


@pytest.mark.parametrize("operator", OPERATORS)
def test_null_compares_with_nothing(operator: str) -> None:
    assert answers(one("integer"), [None], Comparison("value", operator, "1")) == [None]


@pytest.mark.parametrize(
    ("type_name", "operator", "constant", "reason"),
    [
        ("integer", "eq", "many", "is integer, and the value 'many' is not a number"),
        ("numeric", "eq", "1,5", "is not a number"),
        ("boolean", "eq", "perhaps", "is neither true nor false"),
        ("date", "eq", "29.02.2024", "is not a date"),
        ("timestamp", "eq", "noon", "is not a timestamp"),
        ("time", "eq", "25:00", "is not a time of day"),
        ("interval", "eq", "5 parsecs", "'parsecs' is no unit of time"),
        ("interval", "eq", f"{'9' * 400}.5 days", "is not an interval"),
        ("interval", "eq", f"0.{'1' * 60_000} days", "is not an interval"),
        ("uuid", "eq", "42", "is not a uuid"),
        ("inet", "eq", "300.0.0.1", "is not an address"),
        ("json", "eq", "{}", "is json, which cannot be compared"),
        ("text[]", "eq", "{}", "is text[], which cannot be compared"),
        ("mood", "gt", "happy", "is mood, which has no known sort order"),
    ],
)
def test_what_a_type_cannot_be_compared_with_is_refused(type_name: str, operator: str, constant: str, reason: str) -> None:
    with pytest.raises(ValueError, match="column 'value'") as refused:
        Comparison("value", operator, constant).bind(one(type_name))
    assert reason in str(refused.value)


def test_an_enum_compares_by_the_order_of_its_labels() -> None:
    condition = Comparison("value", "gte", "paid", labels=("draft", "paid", "archived"))
    assert answers(one("state"), [b"draft", b"paid", b"archived", None], condition) == [False, True, True, None]
    with pytest.raises(ValueError, match="none of the labels"):
        Comparison("value", "gte", "sold", labels=("draft", "paid")).bind(one("state"))


def test_case_is_ignored_on_request_and_of_citext_always() -> None:
    values = [b"Alice", b"ALICE", b"bob", "\u00c4lice".encode()]
    expected = [True, True, False, False]
    assert answers(one("text"), values, Comparison("value", "eq", "aLice", ignore_case=True)) == expected
    assert answers(one("public.citext"), values, Comparison("value", "eq", "aLice")) == expected
    assert answers(one("text"), values, Contains("value", "LIC", ignore_case=True)) == [True, True, False, True]
    assert answers(one("citext"), values, Contains("value", "LIC")) == [True, True, False, True]
    with pytest.raises(ValueError, match="has no case to ignore"):
        Comparison("value", "eq", "1", ignore_case=True).bind(one("integer"))


@pytest.mark.parametrize(
    ("type_name", "element", "arrays", "expected"),
    [
        (
            "text[]",
            "x",
            [b"{x}", b"{y,x}", b"{xx}", b"{}", b"{y,NULL}", b"{{a,b},{c,x}}"],
            [True, True, False, False, None, True],
        ),
        ("text[]", "NULL", [b'{"NULL"}', b"{NULL}"], [True, None]),
        ("text[]", 'a,"b\\', [rb'{"a,\"b\\"}'], [True]),
        ("text[]", "", [b'{""}', b"{}"], [True, False]),
        ("integer[]", "7", [b"[0:1]={6,7}", b"{77}", b"{007}"], [True, False, True]),
        ("numeric[]", "1.5", [b"{1.50}", b"{1.51,NULL}"], [True, None]),
        ("mood[]", "happy", [b"{sad,happy}", b"{sad}"], [True, False]),
    ],
)
def test_an_array_contains_its_elements(type_name: str, element: str, arrays: list[Value], expected: list[bool | None]) -> None:
    assert answers(one(type_name), arrays, Contains("value", element)) == expected


@pytest.mark.parametrize("type_name", ["integer", "timestamp", "uuid", "bytea"])
def test_what_contains_no_text_is_refused(type_name: str) -> None:
    with pytest.raises(ValueError, match="which contains no text"):
        Contains("value", "1").bind(one(type_name))


def test_a_document_is_searched_as_the_server_sends_it() -> None:
    assert answers(one("jsonb"), [b'{"vip": true}', b"{}"], Contains("value", '"vip"')) == [True, False]
