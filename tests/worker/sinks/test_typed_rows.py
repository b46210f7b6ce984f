"""Rows as Python values, for sinks of others."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from pgsluice import DELETE, INSERT, UPDATE, RowChange, Truncation, WireError, row_changes
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
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

ORDERS = table("public.orders", "id bigint", "total numeric", "note text")
FULL = table("public.people", "id bigint", "name text", identity=ReplicaIdentity.FULL)


@pytest.mark.parametrize(
    ("type_name", "text", "value"),
    [
        ("boolean", b"t", True),
        ("smallint", b"-7", -7),
        ("bigint", b"9223372036854775807", 2**63 - 1),
        ("oid", b"4294967295", 2**32 - 1),
        ("float8", b"0.1", 0.1),
        (
            "numeric",
            b"12345678901234567890123456789012345678901234567890.10",
            Decimal("12345678901234567890123456789012345678901234567890.10"),
        ),
        ("date", b"2026-02-01", date(2026, 2, 1)),
        ("date", b"infinity", "infinity"),
        ("date", b"0044-03-15 BC", "0044-03-15 BC"),
        ("timestamp", b"2026-01-31 09:15:00.5", datetime(2026, 1, 31, 9, 15, 0, 500_000)),
        ("timestamptz", b"2026-01-31 09:15:00.5+00", datetime(2026, 1, 31, 9, 15, 0, 500_000, UTC)),
        ("bytea", b"\\x00ff", b"\x00\xff"),
        ("integer[]", b"{1,NULL}", [1, None]),
        ("integer[]", b"{{1},{2}}", "{{1},{2}}"),
        ("text", "Größe".encode(), "Größe"),
        ("text", None, None),
        ("jsonb", b'{"a": 1}', '{"a": 1}'),
        ("mood", b"glad", "glad"),
    ],
)
def test_a_value_is_pythons_of_its_type_or_its_text(type_name: str, text: bytes | None, value: Any) -> None:
    values = table("public.t", "id bigint", f"v {type_name}")
    (change,) = row_changes(message(1, insert(values, b"1", text)))
    assert isinstance(change, RowChange)
    assert change.new == {"id": 1, "v": value}
    assert change.new is not None
    assert type(change.new["v"]) is type(value)
    assert row_changes(copied(1, values, (b"1", text))) == [(None, INSERT, values, {"id": 1, "v": value}, None)]


def test_changes_of_several_tables_come_in_commit_order_with_their_positions() -> None:
    changes = row_changes(
        message_of(
            3,
            transaction(
                1000,
                insert(ORDERS, b"1", b"2", None),
                insert(FULL, b"1", b"Eva"),
                insert(ORDERS, b"2", None, None),
                truncate(FULL),
            ),
            transaction(2000, delete(ORDERS, b"1", None, None), first_ordinal=5),
        )
    )
    first, second, third, emptied, gone = changes
    assert first == (Position(LSN(1000), 1), INSERT, ORDERS, {"id": 1, "total": Decimal(2), "note": None}, None)
    assert second == (Position(LSN(1000), 2), INSERT, FULL, {"id": 1, "name": "Eva"}, None)
    assert third == (Position(LSN(1000), 3), INSERT, ORDERS, {"id": 2, "total": None, "note": None}, None), "one part holds both"
    assert isinstance(emptied, Truncation)
    assert gone == (Position(LSN(2000), 5), DELETE, ORDERS, None, {"id": 1})


def test_a_row_is_known_by_its_key_before_and_after_each_change() -> None:
    moved, kept, gone, plain = row_changes(
        message(
            1,
            update(ORDERS, b"2", b"1", UNCHANGED, old=(b"1", None, None)),
            update(ORDERS, b"2", b"3", b"n"),
            delete(ORDERS, b"2", None, None),
            insert(table("public.notes", "note text", key=()), b"n"),
        )
    )
    for each, operation, before, after in (
        (moved, UPDATE, {"id": 1}, {"id": 2}),
        (kept, UPDATE, {"id": 2}, {"id": 2}),
        (gone, DELETE, {"id": 2}, {"id": 2}),
        (plain, INSERT, {}, {}),
    ):
        assert isinstance(each, RowChange)
        assert (each.operation, each.key_before, each.key) == (operation, before, after)
    assert isinstance(moved, RowChange)
    assert moved.new == {"id": 2, "total": Decimal(1)}, "what was not sent is not there"


def test_a_value_that_was_not_sent_is_taken_from_the_old_row_as_far_as_that_has_it() -> None:
    (change,) = row_changes(message(1, update(FULL, b"1", UNCHANGED, old=(b"1", b"Eva"))))
    assert isinstance(change, RowChange)
    assert (change.new, change.old) == ({"id": 1, "name": "Eva"}, {"id": 1, "name": "Eva"})


def test_a_table_that_is_copied_again_is_emptied_first() -> None:
    (emptied,) = row_changes(restart(1, ORDERS))
    assert isinstance(emptied, Truncation)
    assert emptied.tables == (ORDERS,)
    assert row_changes(copied(1, ORDERS)) == []


def test_a_value_that_is_not_of_its_type_is_named_by_its_column_alone() -> None:
    with pytest.raises(WireError, match=r"a value of public\.orders\.total is not of its type numeric$"):
        row_changes(message(1, insert(ORDERS, b"1", b"secret", None)))
