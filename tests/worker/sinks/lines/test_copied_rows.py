"""Copied rows as changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.errors import WireError
from pgsluice.shared.rows.changes import INSERT
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.worker.sinks.lines.json_lines import as_changes
from tests.changes_builder import copied, table

ORDERS = table("orders", "id bigint", "note text")


def test_rows_are_inserts_in_order() -> None:
    changes = as_changes(copied(9, ORDERS, (b"1", b"a\tb"), (b"2", None), (b"3", b"")))
    assert changes.table is ORDERS
    assert list(changes.operations) == [INSERT] * 3
    assert changes.change_indexes == [0, 1, 2]
    assert changes.new == [[b"1", b"2", b"3"], [b"a\tb", None, b""]]
    assert changes.old is None


def test_no_rows_are_no_changes() -> None:
    assert len(as_changes(copied(9, ORDERS))) == 0


def test_a_table_without_columns_has_rows() -> None:
    assert len(as_changes(copied(9, table("empty", key=(), identity=ReplicaIdentity.FULL), (), ()))) == 2


def test_text_of_another_shape_is_refused() -> None:
    with pytest.raises(WireError):
        as_changes(replace(copied(9, ORDERS), data=memoryview(b"1\n"), rows=1))
