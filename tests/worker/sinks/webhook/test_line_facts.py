"""The driver knows the same of a line in any shape."""

from __future__ import annotations

import pytest

from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.definition import TableGone
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding, LineShape
from pgsluice.worker.sinks.webhook.placed_lines import LineFacts, read_line
from tests.changes_builder import copied, delete, insert, message, message_of, restart, table, transaction, truncate, update

ROWS = table("public.rows", "id bigint", "part text", "note text", key=("part", "id"))
LOG = table("public.log", "note text", key=(), identity=ReplicaIdentity.FULL)


def facts(shape: LineShape, changes: MessageChanges) -> list[LineFacts]:
    return [read_line(line) for element in LineEncoding(shape).encode(changes) for line in element.splitlines(keepends=True)]


def test_operation_and_position_are_alike_and_rows_are_told_apart_alike() -> None:
    changes = message(
        1,
        insert(ROWS, b"1", b"a", b"x"),
        update(ROWS, b"1", b"a", b"y"),
        delete(ROWS, b"1", b"a", None),
        insert(ROWS, b"1", b"b", b"x"),
        insert(LOG, b"1"),
        delete(LOG, b"2"),
        truncate(ROWS, LOG),
    )
    ours, *others = (facts(shape, changes) for shape in LineShape)
    for theirs in others:
        assert [(each.operation, each.position) for each in theirs] == [(each.operation, each.position) for each in ours]
    for told in (ours, facts(LineShape.PG_FLO, changes)):
        rows = [each.row for each in told]
        assert [rows.index(row) for row in rows[:6]] == [0, 0, 0, 3, 4, 4]


def test_lines_that_do_not_say_what_the_key_is_count_as_one_row_for_each_table() -> None:
    changes = message(1, insert(ROWS, b"1", b"a", b"x"), insert(ROWS, b"2", b"a", b"x"), insert(LOG, b"1"))
    for shape in (LineShape.FLAT, LineShape.DEBEZIUM):
        first, second, other = facts(shape, changes)
        assert first.row == second.row != other.row


def test_a_copied_row_is_read_in_any_shape() -> None:
    for shape in LineShape:
        (row,) = LineEncoding(shape).encode_copied(copied(9, ROWS, (b"1", b"a", b"x")))
        (anew,) = LineEncoding(shape).encode_copied(restart(9, ROWS))
        assert (read_line(row).operation, read_line(row).position) == ("READ", "")
        assert (read_line(anew).operation, read_line(anew).position) == ("RESTART", "")


def test_a_definition_is_read_in_any_shape_that_tells_it() -> None:
    changes = message(1, PublishedDefinition(TableGone("DROP TABLE", 16400, "public", "rows"), None))
    assert not facts(LineShape.DEBEZIUM, changes)
    for shape in (LineShape.JSON, LineShape.FLAT, LineShape.PG_FLO):
        [told] = facts(shape, changes)
        assert (told.operation, told.position) == ("DDL", "0/3E8:1")


@pytest.mark.parametrize("border", [0, -1])
def test_borders_of_transactions_are_told_by_their_lsn(border: int) -> None:
    changes = message_of(2, transaction(0x20, insert(ROWS, b"1", b"a", b"x")))
    line = LineEncoding(transactions=True).encode(changes)[border]
    assert (read_line(line).commit_lsn, read_line(line).position) == ("0/20", "")
