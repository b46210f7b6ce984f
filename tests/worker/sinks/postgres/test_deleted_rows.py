"""Copied rows that are to be deleted go with those that are to be written, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.testing.batch import apply_copied, write_copied
from pgsluice.testing.changes_builder import Row, begins_run, of_run, table
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from tests.worker.sinks.postgres.conftest import Target

MARK = RunMark(1, 100, deletes=3)
ITEMS = table("public.items", "id bigint", "place text", "note text", key=("place", "id"))


@pytest.fixture
def target(new_target: Callable[[], Target]) -> Target:
    made = new_target()
    apply_copied(made.sink, [[begins_run(1, ITEMS, MARK)]])
    rows: list[Row] = [(b"%d" % n, place, b"a") for n in (1, 2, 3) for place in (b"x", b"y")]
    apply_copied(made.sink, [[of_run(2, ITEMS, MARK, *rows)]])
    return made


def deleted(sequence: int, *rows: Row) -> CopiedRows:
    return replace(of_run(sequence, ITEMS, MARK, *rows), deletes=True)


def test_rows_go_by_their_whole_key_beside_others_of_the_message(target: Target) -> None:
    written = replace(of_run(3, ITEMS, MARK, (b"1", b"x", b"b")), more_follow=True)
    both = [written, deleted(3, (b"2", b"x", None), (b"3", b"y", None), (b"9", b"z", None))]
    write_copied(target.sink, [both])
    apply_copied(target.sink, [both])
    assert target.table("public", "items") == [("1", "x", "b"), ("1", "y", "a"), ("2", "y", "a"), ("3", "x", "a")]


def test_a_key_that_the_target_cannot_read_is_told_by_its_place(target: Target) -> None:
    with pytest.raises(RejectedChanges) as raised:
        write_copied(target.sink, [[deleted(3, (b"1", b"x", None), (b"none", b"x", None))]])
    assert [each.position for each in raised.value.rejections] == [copied_position(3, 1)]
    assert len(target.table("public", "items")) == 6
