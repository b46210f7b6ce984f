"""COPY text as a real server writes it, and as it must not be."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.rows.copy_text import decode_rows, encode_columns, encode_rows, plain_fields, split_fields, split_lines
from pgsluice.shared.wire.table import UNCHANGED, Value
from tests.servers import Database, PostgresServer

_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r", b"\b": b"\\b", b"\f": b"\\f", b"\v": b"\\v"}

values = st.none() | st.binary(max_size=8) | st.sampled_from([b"", b"\\N", b"\\", b"N", b"\t\n\\t"])

texts = st.none() | st.text("ab\\\t\n\r.N\b é", max_size=6).map(str.encode)
encoded_rows = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[texts] * width), min_size=1, max_size=8))


def encode(value: bytes | None) -> bytes:
    if value is None:
        return b"\\N"
    return b"".join(_ESCAPES.get(value[i : i + 1], value[i : i + 1]) for i in range(len(value)))


@given(st.integers(1, 4).flatmap(lambda width: st.tuples(st.just(width), st.lists(st.tuples(*[values] * width), max_size=6))))
def test_decoding_is_the_inverse_of_the_manuals_rules(drawn: tuple[int, list[tuple[bytes | None, ...]]]) -> None:
    width, rows = drawn
    data = b"".join(b"\t".join(map(encode, row)) + b"\n" for row in rows)
    assert decode_rows(data, width) == [[row[i] for row in rows] for i in range(width)]


@given(st.integers(0, 4).flatmap(lambda width: st.tuples(st.just(width), st.lists(st.tuples(*[values] * width), max_size=6))))
def test_encoding_is_the_inverse_of_decoding(drawn: tuple[int, list[tuple[bytes | None, ...]]]) -> None:
    width, rows = drawn
    columns = [[row[i] for row in rows] for i in range(width)]
    data = encode_columns(columns, len(rows))
    assert decode_rows(data, width) == columns
    assert data.count(b"\n") == len(rows)


@pytest.mark.parametrize("data", [b"a", b"a\tb\n", b"\n\t\n", b"a\\\n", b"\\x41\n", b"a\nb"])
def test_what_copy_does_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_rows(data, 1)


def test_a_server_and_the_decoder_agree_on_every_character(source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (a text, b text)")
    characters = [chr(i) for i in range(1, 128)] + ["ß", "\u2028", "\U0001f600", "", "\\N", None]
    with source_database.connect() as connection:
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(c, None if c is None else c * 2) for c in characters])
        with connection.cursor().copy("COPY t TO STDOUT") as copy:
            data = b"".join(copy)
    expected = [None if c is None else c.encode() for c in characters]
    columns = decode_rows(data, 2)
    assert columns == [expected, [None if c is None else c * 2 for c in expected]]
    copied = encode_columns(columns, len(characters))
    with source_database.connect() as connection:
        connection.execute("CREATE TABLE again (a text, b text)")
        with connection.cursor().copy("COPY again FROM STDIN") as copy:
            copy.write(copied)
        assert connection.execute("SELECT * FROM t EXCEPT ALL SELECT * FROM again").fetchall() == []


@given(st.lists(texts | st.just(UNCHANGED), max_size=6))
def test_plain_fields_are_those_that_encoding_leaves_as_they_are(column: list[Value]) -> None:
    encoded = split_lines(encode_columns([column], len(column)))
    is_plain = UNCHANGED not in column and all(b"\\" not in field for field in encoded if field != b"\\N")
    assert plain_fields(column) == (encoded if is_plain else None)


@given(encoded_rows)
def test_lines_and_fields_are_split_where_the_separators_are(rows: list[tuple[Value, ...]]) -> None:
    assert [len(split_fields(line)) for line in split_lines(encode_rows(rows))] == [len(row) for row in rows]


def test_separators_and_backslashes_inside_values_are_escaped() -> None:
    assert encode_rows([(b"a\tb", b"c\nd"), (b"e\\f", b"g\rh")]) == b"a\\tb\tc\\nd\ne\\\\f\tg\\rh\n"


def test_null_and_the_text_of_the_null_marker_differ() -> None:
    assert encode_columns([[None, b"\\N", b""]], 3) == b"\\N\n\\\\N\n\n"


def test_an_unchanged_value_travels_as_null() -> None:
    assert encode_rows([(b"1", UNCHANGED)]) == b"1\t\\N\n"


@given(encoded_rows)
def test_rows_and_columns_encode_alike(rows: list[tuple[Value, ...]]) -> None:
    assert encode_rows(rows) == encode_columns(list(zip(*rows, strict=True)), len(rows))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(rows=encoded_rows)
def test_postgres_reads_the_very_values_back(postgres: PostgresServer, rows: list[tuple[Value, ...]]) -> None:
    columns = ", ".join(f"c{i} text" for i in range(len(rows[0])))
    with postgres.connect() as connection:
        connection.execute(f"CREATE TEMPORARY TABLE copied (position serial, {columns})".encode())
        names = ", ".join(f"c{i}" for i in range(len(rows[0])))
        with connection.cursor() as cursor, cursor.copy(f"COPY copied ({names}) FROM STDIN".encode()) as copy:
            copy.write(encode_rows(rows))
        read = connection.execute(f"SELECT {names} FROM copied ORDER BY position".encode()).fetchall()
    expected = [tuple(value.decode() if isinstance(value, bytes) else None for value in row) for row in rows]
    assert read == expected
