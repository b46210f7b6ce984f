"""Rows as COPY text stay what they are while columns are replaced and rows are dropped.

Frames of one shape become such rows all at once: the same as value by value, or they are not taken.
"""

from __future__ import annotations

from itertools import compress
from struct import Struct, pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, Begin, Commit, Insert, Relation, RelationColumn, Update
from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.rows.copy_text import decode_rows, encode_columns, encode_rows
from pgsluice.shared.rows.parts import FEWEST_PLAIN_ROWS
from pgsluice.shared.rows.plain_rows import PlainRows, rows_of_frames, selected, with_columns
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Value
from tests.shared.pgoutput.bodies import body_of

WIDTH = 3
plain_values = st.none() | st.text("abcé𝄞 09-", max_size=4).map(str.encode)
Columns = list[list[Value]]
Row = tuple[Value, ...]
TABLE = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, tuple(RelationColumn(i == 0, f"c{i}", 25, -1) for i in range(WIDTH)))
BEGIN = Begin(LSN(100), 5, 7)
COMMIT = Commit(0, LSN(100), LSN(108), 5)
ORDINARY_VALUES = st.one_of(st.none(), st.text("abcé𝄞 09-", max_size=12).map(str.encode))
ANY_VALUES = st.one_of(ORDINARY_VALUES, st.sampled_from([b"\\", b"\t", b"\n", b"\r", b"\x01", b"\x02", b"\\N", b"x" * 300]))


def rows_of(values: st.SearchStrategy[bytes | None]) -> st.SearchStrategy[list[Row]]:
    row = st.tuples(*[values] * WIDTH)
    return st.lists(row, min_size=1, max_size=30).map(lambda rows: rows * (FEWEST_PLAIN_ROWS // len(rows) + 1))


def decode(rows: list[Row]) -> TableChanges:
    body = body_of([TABLE, BEGIN, *(Insert(1, row) for row in rows), COMMIT])
    (part,) = decode_changes(body, first_sequence=1, sequence=1, first_ordinal=1).parts
    assert isinstance(part, TableChanges)
    return part


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


@given(rows_of(ORDINARY_VALUES))
def test_ordinary_rows_become_copy_text_that_means_the_same(rows: list[Row]) -> None:
    part = decode(rows)
    assert isinstance(part.new, PlainRows)
    assert decode_rows(part.new.text, WIDTH) == list(part.new) == [list(column) for column in zip(*rows, strict=True)]
    assert part.new.text == encode_rows(rows)
    assert len(part) == len(rows)


@given(rows_of(ANY_VALUES))
def test_rows_of_any_values_are_as_they_were_sent(rows: list[Row]) -> None:
    new = decode(rows).new
    assert list(new) == [list(column) for column in zip(*rows, strict=True)]
    assert not isinstance(new, PlainRows) or new.text == encode_rows(rows)


def test_updates_that_sent_everything_are_plain_and_those_that_did_not_keep_what_is_unchanged() -> None:
    whole: list[Row] = [(b"%d" % i, b"x", None) for i in range(FEWEST_PLAIN_ROWS)]
    partial: list[Row] = [*whole, (b"9", UNCHANGED, b"y")]
    for rows, is_plain in ((whole, True), (partial, False)):
        body = body_of([TABLE, BEGIN, *(Update(1, NO_OLD_ROW, (), row) for row in rows), COMMIT])
        (part,) = decode_changes(body, first_sequence=1, sequence=1, first_ordinal=1).parts
        assert isinstance(part, TableChanges)
        assert isinstance(part.new, PlainRows) == is_plain
        assert list(part.new) == [list(column) for column in zip(*rows, strict=True)]


def test_rows_stay_in_order_when_another_shape_follows_many_of_one() -> None:
    inserted: list[Row] = [(b"%d" % i, b"x", None) for i in range(FEWEST_PLAIN_ROWS)]
    updated: Row = (b"0", b"z", b"")
    body = body_of(
        [TABLE, BEGIN, *(Insert(1, row) for row in inserted), Update(1, NO_OLD_ROW, (), updated), Insert(1, updated), COMMIT]
    )
    (part,) = decode_changes(body, first_sequence=1, sequence=1, first_ordinal=1).parts
    assert isinstance(part, TableChanges)
    assert bytes(part.operations) == b"I" * len(inserted) + b"UI"
    assert list(zip(*part.new, strict=True)) == [*inserted, updated, updated]


@given(rows_of(ORDINARY_VALUES), st.data())
def test_a_damaged_byte_is_refused_or_stays_inside_its_value(rows: list[Row], data: st.DataObject) -> None:
    body = bytearray(body_of([TABLE, BEGIN, *(Insert(1, row) for row in rows), COMMIT]))
    at = data.draw(st.integers(len(body) // 2, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        part = decode_changes(bytes(body), first_sequence=1, sequence=1, first_ordinal=1).parts[0]
    except WireError:
        return
    assert isinstance(part, TableChanges)
    assert {len(column) for column in part.new} == {len(part)}


@pytest.mark.parametrize("length", range(8))
def test_a_frame_that_is_shorter_than_its_shape_is_not_plain(length: int) -> None:
    """Its first eight bytes are those of the others only with what comes after it."""
    assert rows_of_frames(pack(">I", length) + bytes(length), [length], 1) is None


@pytest.mark.parametrize("length", [0, 1, 13, 1 << 31, (1 << 32) - 1])
def test_a_length_that_leaves_the_frame_is_not_plain(length: int) -> None:
    frame = Struct(">cIcHcI").pack(b"I", 1, b"N", 1, b"t", length) + b"value"
    assert rows_of_frames((Struct(">I").pack(len(frame)) + frame) * 2, [len(frame)] * 2, 1) is None
