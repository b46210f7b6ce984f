"""Rows of a run that an earlier one brought, the same: they are not written again, and counted once whatever breaks."""

from __future__ import annotations

import pytest

from pgsluice.shared.broker.worker_records import UnchangedRows
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.testing.batch import apply_copied, write_copied
from pgsluice.testing.changes_builder import Row, begins_run, of_run, table
from tests.worker.sinks.postgres.conftest import Target

ITEMS = table("public.items", "id bigint", "note text", "price numeric", "doc json")
SAME: Row = (b"1", b"a", b"1.50", b'{"a": 1}')
PLACES = "SELECT id, xmin FROM items ORDER BY id"


def run(target: Target, number: int, *rows: Row) -> None:
    """Two messages, each a batch of its own."""
    first = 10 * number
    mark = RunMark(number, 1000 * number)
    apply_copied(target.sink, [[begins_run(first, ITEMS, mark)]])
    apply_copied(target.sink, [[of_run(first + 1, ITEMS, mark, *rows)]])


def test_a_row_that_is_there_is_neither_written_nor_counted_as_written(target: Target) -> None:
    run(target, 1, SAME, (b"2", None, b"2", b"[]"))
    assert target.sink.unchanged() == UnchangedRows(11, 0)
    before = dict(target.rows(PLACES))
    run(target, 2, SAME, (b"2", b"b", b"2", b"[]"), (b"3", b"c", None, None))
    after = dict(target.rows(PLACES))
    assert target.sink.unchanged() == UnchangedRows(21, 1)
    assert (after[1] == before[1], after[2] == before[2], sorted(after)) == (True, False, [1, 2, 3])
    assert target.rows("SELECT note FROM items ORDER BY id") == [("a",), ("b",), ("c",)]


@pytest.mark.parametrize(
    "changed", [(b"1", b"a", b"1.5", b'{"a": 1}'), (b"1", b"a", b"1.50", b'{"a":1}'), (b"1", None, b"1.50", None)]
)
def test_what_is_equal_but_of_another_text_is_written(target: Target, changed: Row) -> None:
    run(target, 1, SAME)
    run(target, 2, changed)
    assert target.sink.unchanged() == UnchangedRows(21, 0)
    [found] = target.rows("SELECT id::text, note, price::text, doc::text FROM items")
    assert found == tuple(value.decode() if isinstance(value, bytes) else value for value in changed)


def test_of_rows_that_come_together_with_one_key_none_is_chosen(target: Target) -> None:
    with pytest.raises(TerminalError, match="return each key once"):
        run(target, 1, SAME, (b"1", b"b", None, None))
    assert target.rows("SELECT count(*) FROM items") == [(0,)]


def test_rows_of_all_batches_of_a_run_are_counted_once_by_a_successor_too(target: Target) -> None:
    rows = [(b"%d" % n, b"a", None, None) for n in range(6)]
    run(target, 1, *rows)
    mark = RunMark(2, 2000)
    apply_copied(target.sink, [[begins_run(20, ITEMS, mark)]])
    apply_copied(target.sink, [[of_run(21, ITEMS, mark, *rows[:2])], [of_run(22, ITEMS, mark, *rows[2:4])]])
    assert target.sink.unchanged() == UnchangedRows(22, 4)
    late = [of_run(23, ITEMS, mark, *rows[4:])]
    write_copied(target.sink, [late])  # a task whose driver died
    successor = target.new_sink()
    successor.open()
    again = RunMark(2, 2001)
    for batch in [late], [[begins_run(24, ITEMS, again)]], [[of_run(25, ITEMS, again, (b"9", b"new", None, None))]]:
        apply_copied(successor, batch)
    assert successor.unchanged() == UnchangedRows(25, 6)
    assert target.rows("SELECT count(*) FROM pgsluice.copied") == [(0,)]
