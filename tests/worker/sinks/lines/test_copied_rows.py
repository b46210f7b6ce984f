"""Copied rows as changes."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from pgsluice.shared.errors import TerminalError, WireError
from pgsluice.shared.rows.changes import INSERT
from pgsluice.shared.wire.position import LSN, Anchor, Position
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.changes_builder import begins_run, copied, ends_run, of_run, table
from pgsluice.worker.sinks.lines.json_lines import as_changes, encode_copied
from pgsluice.worker.sinks.nats.group_writer import GroupWriter
from pgsluice.worker.sinks.sink import Partition

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


def test_a_run_that_replaces_all_rows_begins_with_one_line_that_says_so_and_ends_without() -> None:
    mark = RunMark(2, 20, replaces=True)
    [line] = encode_copied(begins_run(1, ORDERS, mark))
    assert orjson.loads(line)["operation"] == "RESTART"
    [line] = encode_copied(of_run(2, ORDERS, mark, (b"1", b"a")))
    assert orjson.loads(line)["operation"] == "READ"
    assert encode_copied(ends_run(3, ORDERS, mark)) == []
    assert encode_copied(begins_run(4, ORDERS, RunMark(3, 30))) == []


def test_a_derived_group_takes_no_rows_of_a_pipeline() -> None:
    writer = GroupWriter(after=str(Anchor(Position(LSN(1), 1), 1, 1)))
    for replaces in (False, True):
        begin = begins_run(1, ORDERS, RunMark(1, 10, replaces=replaces))
        with pytest.raises(TerminalError, match="a derived group takes no rows of a SQL pipeline"):
            list(writer.write_copied(Partition(1, 1), iter([begin])))
