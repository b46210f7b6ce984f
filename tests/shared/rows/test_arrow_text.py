"""What the server writes is the same text again when it has been an Arrow array, and what Arrow has is text that it reads."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pgsluice.shared.rows.arrow_text import arrow_type, arrow_values, postgres_texts, postgres_type
from pgsluice.shared.wire.table import Column
from tests.servers import Database

SAMPLES = {
    "boolean": "true",
    "smallint": "-32768",
    "integer": "2147483647",
    "bigint": "-9223372036854775808",
    "oid": "4294967295",
    "real": "1.5",
    "double precision": "'NaN'",
    "float8": "'-Infinity'",
    "numeric(12,3)": "-123456789.125",
    "numeric(38,10)": "0.0000000001",
    "numeric": "123456789012345678901234567890.123456789",
    "text": "E'tab\\t\\\\ ünï'",
    "bytea": r"'\x00ff'",
    "date": "'2024-02-29'",
    "timestamp": "'0001-01-01 00:00:00.10'",
    "timestamptz": "'9999-12-31 23:59:59.999999+00'",
    "interval": "'1 day 02:00'",
    "uuid": "'00000000-0000-0000-0000-000000000001'",
    "jsonb": """'{"a": [1, null]}'""",
    "integer[]": "'{1,NULL,-3}'",
}


def column(oid: int, typmod: int, type_name: str) -> Column:
    return Column("c", oid, type_name, typmod, False, None, False, "", "")


def test_every_value_comes_out_as_the_server_wrote_it(source_database: Database) -> None:
    with source_database.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        for name, value in SAMPLES.items():
            cursor = connection.execute(f"SELECT v, v::text FROM (SELECT CAST({value} AS {name}) AS v) AS q".encode())
            description = cursor.description
            assert description is not None
            result = cursor.pgresult
            assert result is not None
            kind = arrow_type(column(result.ftype(0), result.fmod(0), name))
            raw = result.get_value(0, 0)
            assert postgres_texts(arrow_values([raw, None], kind)) == [raw, None], name


@pytest.mark.parametrize(
    ("value", "kind", "text", "type_name"),
    [
        (True, pa.bool_(), b"t", "boolean"),
        (7, pa.uint32(), b"7", "bigint"),
        (-7, pa.int8(), b"-7", "smallint"),
        (1e20, pa.float64(), b"1e+20", "double precision"),
        (Decimal("0.0000000001"), pa.decimal128(38, 10), b"0.0000000001", "numeric(38,10)"),
        (Decimal("-5.50"), pa.decimal128(5, 2), b"-5.50", "numeric(5,2)"),
        ("a\tb", pa.large_string(), b"a\tb", "text"),
        (b"\x01", pa.large_binary(), b"\\x01", "bytea"),
        (date(5, 1, 2), pa.date32(), b"0005-01-02", "date"),
        (time(1, 2, 3, 500000), pa.time64("us"), b"01:02:03.5", "time without time zone"),
        (datetime(2026, 1, 2, 3), pa.timestamp("s"), b"2026-01-02 03:00:00", "timestamp without time zone"),
        (datetime(2026, 1, 2, 3), pa.timestamp("ns", "Asia/Tokyo"), b"2026-01-02 03:00:00+00", "timestamp with time zone"),
    ],
)
def test_an_array_becomes_text_of_a_type_that_takes_it(
    source_database: Database, value: Any, kind: pa.DataType, text: bytes, type_name: str
) -> None:
    assert postgres_texts(pa.array([value, None], kind)) == [text, None]
    found = postgres_type(kind)
    assert found is not None
    assert found.name == type_name
    asked = f"SELECT '{text.decode()}'::{found.name}, ('{found.name}'::regtype)::oid::int"
    _, oid = source_database.execute(asked)[0]
    assert oid == found.oid
    if kind == pa.decimal128(5, 2):
        assert source_database.execute(f"SELECT format_type({found.oid}, {found.typmod})") == [("numeric(5,2)",)]


@pytest.mark.parametrize("kind", [pa.struct([("a", pa.int8())]), pa.list_(pa.int8()), pa.decimal128(5, -2), pa.duration("us")])
def test_what_no_column_holds_has_no_type(kind: pa.DataType) -> None:
    assert postgres_type(kind) is None


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a\0b"]),
        pa.array([1], pa.timestamp("ns")),
        pa.array([10**18], pa.timestamp("us")),
        pa.array([-(10**6)], pa.date32()),
    ],
)
def test_a_value_that_postgres_does_not_have_is_refused(array: pa.Array) -> None:
    with pytest.raises(ValueError, match=r"."):
        postgres_texts(array)
