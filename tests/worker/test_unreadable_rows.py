"""Which rows of a source of encoding SQL_ASCII cannot be read."""

from __future__ import annotations

from shared.table import UNCHANGED, ReplicaIdentity
from tests.changes_builder import copied, delete, insert, message, table, update
from worker.unreadable_rows import unreadable_changes, unreadable_copied

PEOPLE = table("public.people", "id bigint", "name text", "note text", identity=ReplicaIdentity.FULL)
LATIN = "é".encode("latin-1")
BOTH_HALVES = "é".encode()


def test_changes_with_a_value_that_is_not_utf8_are_named_with_the_column() -> None:
    changes = message(
        1,
        insert(PEOPLE, b"1", "é".encode(), None),
        insert(PEOPLE, b"2", LATIN, b"x"),
        insert(PEOPLE, b"3", BOTH_HALVES[:1], b"x"),
        insert(PEOPLE, b"4", BOTH_HALVES[1:], b"x"),
        update(PEOPLE, b"5", b"y", UNCHANGED, old=(b"5", b"y", LATIN)),
        delete(PEOPLE, b"6", b"z", b"z"),
    )
    found = unreadable_changes(changes)
    assert [row.change_index for row in found] == [1, 2, 3, 4]
    assert [("'name'" in row.reason, "'note'" in row.reason) for row in found] == [(True, False)] * 3 + [(False, True)]
    assert all("xe9" not in row.reason for row in found)


def test_copied_rows_are_named_by_their_number() -> None:
    rows = copied(1, PEOPLE, (b"1", b"a", None), (b"2", b"b", LATIN), (b"3", "é".encode(), b""))
    assert [(row.change_index, "'note'" in row.reason) for row in unreadable_copied(rows)] == [(1, True)]
    assert unreadable_copied(copied(1, PEOPLE, (b"1", "é".encode(), None))) == []
