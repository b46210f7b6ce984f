"""Which rows of a source of encoding SQL_ASCII cannot be read."""

from __future__ import annotations

from dataclasses import replace

from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.changes_builder import copied, delete, insert, message, table, update
from pgsluice.worker.batches.unreadable_rows import unreadable_changes, unreadable_copied

PLACES = table("public.places", "id bigint")
PEOPLE = table("public.people", "id bigint", "name text", "note text", identity=ReplicaIdentity.FULL)
LATIN = "é".encode("latin-1")


def test_changes_with_a_value_that_is_not_utf8_are_named_with_the_column() -> None:
    changes = message(
        1,
        insert(PLACES, b"1"),
        insert(PEOPLE, b"1", "é".encode(), None),
        insert(PEOPLE, b"2", LATIN, b"x"),
        update(PEOPLE, b"5", b"y", UNCHANGED, old=(b"5", b"y", LATIN)),
        delete(PEOPLE, b"6", b"z", b"z"),
    )
    found = unreadable_changes(changes)
    assert [row.change_index for row in found] == [2, 3]
    assert [("'name'" in row.reason, "'note'" in row.reason) for row in found] == [(True, False), (False, True)]
    assert all("xe9" not in row.reason for row in found)


def test_two_values_that_are_a_character_only_together_are_not_readable() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    changes = message(1, insert(PEOPLE, b"1", first, b"x"), insert(PEOPLE, b"2", second, b"x"))
    assert [row.change_index for row in unreadable_changes(changes)] == [0, 1]


def test_copied_rows_are_named_by_their_number_in_the_message() -> None:
    rows = copied(1, PEOPLE, (b"1", b"a", None), (b"2", b"b", LATIN), (b"3", "é".encode(), b""))
    assert [(row.change_index, "'note'" in row.reason) for row in unreadable_copied(rows)] == [(1, True)]
    without_others = replace(rows, numbers=(4, 6, 7))
    assert [row.change_index for row in unreadable_copied(without_others)] == [6]
    assert unreadable_copied(copied(1, PEOPLE, (b"1", "é".encode(), None))) == []
