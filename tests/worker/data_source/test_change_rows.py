"""Changes as Arrow rows: what each column of a row says."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructType

from pgsluice.shared.rows.changes import MessageChanges, Transaction
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Table
from pgsluice.testing.changes_builder import delete, insert, message, message_of, table, transaction, truncate, update
from pgsluice.worker.data_source.change_rows import ChangeRows, gathered
from pgsluice.worker.data_source.data_source import change_schema
from pgsluice.worker.data_source.typed_columns import NUMBER, row_type

ORDERS = table("shop.orders", "id bigint", "note text", "large text")
FULL = table("shop.orders", "id bigint", "note text", "large text", identity=ReplicaIdentity.FULL)
LINES = table("lines", "id bigint")


def rows_of(changes: MessageChanges, image: DataType | None = None, **wants: Any) -> list[dict[str, Any]]:
    fields = image if isinstance(image, StructType) else ()
    rows = ChangeRows(
        to_arrow_schema(change_schema(image or StringType()), timezone="UTC"),
        wants.get("table", lambda oid, schema, name: True),
        {each.name: each.metadata[NUMBER] for each in fields},
    )
    batch = rows.batch(changes, wants.get("transaction", lambda transaction: True))
    return [] if batch is None else batch.to_pylist()


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("orders", [ORDERS, FULL])
def test_a_column_that_the_source_did_not_send_is_named_unless_the_old_row_has_it(orders: Table, is_typed: bool) -> None:
    old = (b"2", b"a", b"L") if orders is FULL else None
    changes = message(
        1,
        insert(orders, b"1", None, None),
        update(orders, b"2", b"b", UNCHANGED, old=old),
        update(orders, b"2", b"b", None, old=old),
        delete(orders, b"2", b"b", None),
    )
    rows = rows_of(changes, row_type(orders) if is_typed else None)
    assert [row["unchanged"] for row in rows] == [[], [] if old else ["large"], [], []]
    afters = [row["after"] if is_typed or row["after"] is None else json.loads(row["after"]) for row in rows]
    assert [after and after.get("large") for after in afters] == [None, "L" if old else None, None, None]
    assert [after is None for after in afters] == [False, False, False, True]
    assert is_typed or [after and "large" in after for after in afters] == [True, bool(old), True, None]
    assert [row["operation"] for row in rows] == ["INSERT", "UPDATE", "UPDATE", "DELETE"]
    assert [row["before"] is not None for row in rows] == [False, bool(old), bool(old), True]


def test_rows_of_several_tables_stand_in_commit_order() -> None:
    changes = message_of(
        7,
        transaction(0x100, insert(ORDERS, b"1", None, None), insert(LINES, b"2"), first_ordinal=5, xid=3, committed_at=1),
        transaction(0x200, delete(ORDERS, b"1", None, None), truncate(LINES, ORDERS), xid=4, committed_at=2),
    )
    rows = rows_of(changes)
    assert [(row["table"], row["number"]) for row in rows] == [
        *(("orders", 1), ("lines", 2), ("orders", 3), ("lines", 4), ("orders", 4))
    ]
    assert [(row["position"]["commit_lsn"], row["position"]["ordinal"]) for row in rows] == [
        *((0x100, 5), (0x100, 6), (0x200, 1), (0x200, 2), (0x200, 2))
    ]
    assert [row["position_text"] for row in rows] == ["0/100:5", "0/100:6", "0/200:1", "0/200:2", "0/200:2"]
    assert [row["xid"] for row in rows] == [3, 3, 4, 4, 4]
    assert {row["sequence"] for row in rows} == {7}


def test_tables_and_transactions_that_are_not_wanted_are_left_out() -> None:
    changes = message_of(
        1,
        transaction(0x100, insert(LINES, b"1"), truncate(LINES), xid=3),
        transaction(0x200, insert(LINES, b"2"), insert(ORDERS, b"3", None, None), truncate(LINES, ORDERS), xid=4),
    )

    def is_second(of: Transaction) -> bool:
        return of.xid == 4

    lines = rows_of(changes, transaction=is_second, table=lambda oid, schema, name: (schema, name) == ("public", "lines"))
    assert [(row["operation"], row["after"]) for row in lines] == [("INSERT", '{"id":2}'), ("TRUNCATE", None)]
    assert [row["number"] for row in lines] == [3, 5]
    assert rows_of(changes, table=lambda oid, schema, name: False) == []
    for image in (None, row_type(LINES)):
        assert rows_of(changes, image, transaction=lambda of: False) == []


def test_a_value_that_its_column_has_no_place_for_is_beside_it_as_text() -> None:
    prices = table("prices", "id bigint", "at date", "odd integer[]", identity=ReplicaIdentity.FULL)
    changes = message(
        1,
        insert(prices, b"1", b"infinity", b"{1}"),
        update(prices, b"1", b"2026-01-31", b"{{1}}", old=(b"1", b"infinity", b"{1}")),
        delete(prices, b"1", b"2026-01-31", b"{{1}}"),
    )
    rows = rows_of(changes, row_type(prices))
    assert [row["after"] and (row["after"]["at"], row["after"]["odd"]) for row in rows] == [
        *((None, [1]), (date(2026, 1, 31), None), None)
    ]
    assert [row["as_text"] and {image: dict(values or ()) for image, values in row["as_text"].items()} for row in rows] == [
        {"before": {}, "after": {"at": "infinity"}},
        {"before": {"at": "infinity"}, "after": {"odd": "{{1}}"}},
        {"before": {"odd": "{{1}}"}, "after": {}},
    ]


def test_typed_columns_are_found_by_their_numbers_whatever_they_were_called() -> None:
    def version(*columns: tuple[str, int]) -> Table:
        made = table("t", *(f"{name} text" for name, _ in columns), key=())
        return replace(made, columns=tuple(replace(c, number=n) for c, (_, n) in zip(made.columns, columns, strict=True)))

    now = version(("b", 1), ("c", 3), ("a", 4))
    seen = [
        version(("a", 1), ("b", 2)),  # before a renaming, with a column that is gone
        version(("b", 1), ("c", 3), ("a", 4), ("later", 5)),
        version(("b", 0), ("x", 0)),  # nobody knows which columns they were
    ]
    rows = [rows_of(message(1, insert(each, *(b"%d" % n for n in range(len(each.columns))))), row_type(now)) for each in seen]
    assert [row["after"] for [row] in rows] == [
        {"b": "0", "c": None, "a": None},
        {"b": "0", "c": "1", "a": "2"},
        {"b": "0", "c": None, "a": None},
    ]
    assert [dict(row["as_text"]["after"]) for [row] in rows] == [{"b": "1"}, {"later": "3"}, {"x": "1"}]


def test_small_batches_are_gathered_in_their_order() -> None:
    schema = to_arrow_schema(change_schema(StringType()), timezone="UTC")
    rows = ChangeRows(schema, lambda oid, schema, name: True)
    made = [rows.batch(message(number, insert(LINES, b"%d" % number)), lambda _: True) for number in range(1, 6)]
    batches = list(gathered((batch, 3 << 20) for batch in made if batch is not None))
    assert [batch.column("sequence").to_pylist() for batch in batches] == [[1, 2, 3], [4, 5]]
