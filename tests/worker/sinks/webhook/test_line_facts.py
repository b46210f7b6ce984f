"""The driver knows the same of a line in any shape."""

from __future__ import annotations

import pytest

from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.definition import TableGone
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import ReplicaIdentity
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
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding, LineShape
from pgsluice.worker.sinks.webhook.placed_lines import LineFacts, read_line

ROWS = table("public.rows", "id bigint", "part text", "note text", key=("part", "id"))
UNREADABLE = (rb'"\ud83d"', b"1e400", b"%d" % 10**400, b"[" * 2000 + b"]" * 2000, b'{"deep":' * 2000 + b"1" + b"}" * 2000)
"""Half a character, as what cuts texts in two leaves it; numbers above all that a machine counts with; what is nested deep."""
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


@pytest.mark.parametrize("shape", LineShape)
def test_columns_that_are_called_as_fields_of_another_shape_do_not_make_a_line_of_that_shape(shape: LineShape) -> None:
    audit = table("public.audit", "id bigint", "op text", "Type text", "source text", "operation text", "key text")
    changes = message(1, insert(audit, b"1", *[b"u"] * 5), delete(audit, b"1", *[None] * 5))
    (row,) = LineEncoding(shape).encode_copied(copied(9, audit, (b"1", *[b"u"] * 5)))
    assert [(each.operation, each.position) for each in facts(shape, changes)] == [("INSERT", "0/3E8:1"), ("DELETE", "0/3E8:2")]
    assert (read_line(row).operation, read_line(row).position) == ("READ", "")


@pytest.mark.parametrize("shape", LineShape)
@pytest.mark.parametrize("value", UNREADABLE)
def test_a_value_that_not_every_reader_of_json_takes_hides_nothing_else(shape: LineShape, value: bytes) -> None:
    """PostgreSQL takes all of these for json, and some for jsonb and numeric."""
    papers = table("public.papers", "id bigint", "paper json", "more text", identity=ReplicaIdentity.FULL)
    changes = message(1, insert(papers, b"1", value, b"n"), insert(papers, b"2", value, b"n"), delete(papers, b"1", value, b"n"))
    (row,) = LineEncoding(shape).encode_copied(copied(9, papers, (b"1", value, b"n")))
    told = facts(shape, changes)
    assert [(each.operation, each.position) for each in told] == [
        ("INSERT", "0/3E8:1"),
        ("INSERT", "0/3E8:2"),
        ("DELETE", "0/3E8:3"),
    ]
    assert told[0].row == told[2].row
    assert (told[0].row == told[1].row) is (shape in (LineShape.FLAT, LineShape.DEBEZIUM))
    assert (read_line(row).operation, read_line(row).position) == ("READ", "")


def test_a_key_that_not_every_reader_of_json_takes_tells_rows_apart() -> None:
    measured = table("public.measured", "id numeric", "note text")
    changes = message(1, *(insert(measured, b"%d" % 10**400 + end, b"n") for end in (b"1", b"2", b"1")))
    for shape in (LineShape.JSON, LineShape.PG_FLO):
        first, other, again = (each.row for each in facts(shape, changes))
        assert first == again != other


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
