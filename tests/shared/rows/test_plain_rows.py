"""Rows as COPY text stay what they are while columns are replaced and rows are dropped."""

from __future__ import annotations

from itertools import compress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.rows.copy_text import decode_rows, encode_columns
from pgsluice.shared.rows.plain_rows import PlainRows, selected, with_columns
from pgsluice.shared.wire.table import UNCHANGED, Value

WIDTH = 3
plain_values = st.none() | st.text("abcé𝄞 09-", max_size=4).map(str.encode)
Columns = list[list[Value]]


def columns_of(rows: list[tuple[Value, ...]]) -> Columns:
    return [[row[column] for row in rows] for column in range(WIDTH)]


def plain(columns: Columns) -> PlainRows:
    count = len(columns[0])
    return PlainRows(encode_columns(columns, count), len(columns), sum(column.count(None) for column in columns))


rows_and_more = st.lists(st.tuples(*[plain_values] * WIDTH, plain_values, st.booleans()), max_size=6)


@given(rows_and_more, st.integers(0, WIDTH - 1))
def test_replacing_and_selecting_is_the_same_as_on_columns(drawn: list[tuple[Value, ...]], index: int) -> None:
    columns = columns_of(drawn)
    replaced: list[Value] = [row[WIDTH] for row in drawn]
    kept = bytes(bool(row[WIDTH + 1]) for row in drawn)
    expected = [list(compress(replaced if place == index else column, kept)) for place, column in enumerate(columns)]
    for rows in (columns, plain(columns)):
        changed = selected(with_columns(rows, {index: replaced}), kept)
        assert list(changed) == expected
        assert isinstance(changed, PlainRows) is isinstance(rows, PlainRows)
        if isinstance(changed, PlainRows):
            assert decode_rows(changed.text, WIDTH) == expected
            assert changed.text == encode_columns(expected, sum(kept))


@pytest.mark.parametrize("value", [b"a\tb", b"\n", b"\\", b"\\N", UNCHANGED])
@pytest.mark.parametrize("neighbour", [b"x", None])
def test_rows_are_no_longer_plain_with_a_value_that_copy_text_would_escape(value: Value, neighbour: Value) -> None:
    columns: Columns = [[b"1", b"2"], [b"a", b"b"]]
    changed = with_columns(plain(columns), {1: [neighbour, value]})
    assert changed == [[b"1", b"2"], [neighbour, value]]
    assert not isinstance(changed, PlainRows)


def test_columns_are_found_as_in_a_list() -> None:
    rows = plain([[b"1", b"2"], [b"a", None], [b"", b"z"]])
    assert rows[-1] == [b"", b"z"]
    assert rows[1:] == [[b"a", None], [b"", b"z"]]
    assert rows == [[b"1", b"2"], [b"a", None], [b"", b"z"]]
    with pytest.raises(IndexError):
        rows[3]
