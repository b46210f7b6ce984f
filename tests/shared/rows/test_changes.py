"""Where a change of a message stands in its transaction."""

from __future__ import annotations

import pytest

from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.changes_builder import delete, insert, message_of, table, transaction, truncate, update

ORDERS = table("orders", "id bigint", "note text")
LINES = table("lines", "id bigint")


@pytest.mark.parametrize(("first_ordinal", "expected"), [(1, [1, 2, 3]), (5_000, [5_000, 5_001, 5_002])])
def test_a_position_counts_from_the_first_ordinal_of_the_part(first_ordinal: int, expected: list[int]) -> None:
    row = insert(ORDERS, b"1", None)
    changes = message_of(2, transaction(0xA0, row, row), transaction(0xB0, row, row, row, first_ordinal=first_ordinal))
    earlier, later = changes.transactions
    assert [earlier.position(i) for i in (0, 1)] == [Position(LSN(0xA0), 1), Position(LSN(0xA0), 2)]
    assert [later.position(i).ordinal for i in range(later.first_change, later.end_change)] == expected


def test_the_length_of_a_part_is_its_rows() -> None:
    changes = message_of(1, transaction(0xA0, insert(ORDERS, b"1", None), update(ORDERS, b"1", b"x"), delete(LINES, b"1")))
    assert [len(part) for part in changes.parts if isinstance(part, TableChanges)] == [2, 1]
    assert len(TableChanges(ORDERS)) == 0


def test_rows_behind_a_truncation_are_another_part() -> None:
    row = insert(ORDERS, b"1", None)
    changes = message_of(1, transaction(0xA0, row, truncate(LINES), row))
    assert [getattr(part, "change_indexes", None) for part in changes.parts] == [[0], None, [2]]
    assert changes.change_count == 3
