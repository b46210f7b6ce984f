"""COPY text as a real server writes it, and as it must not be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.rows.copy_text import decode_rows, encode_columns
from tests.servers import Database

_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r", b"\b": b"\\b", b"\f": b"\\f", b"\v": b"\\v"}

values = st.none() | st.binary(max_size=8) | st.sampled_from([b"", b"\\N", b"\\", b"N", b"\t\n\\t"])


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
