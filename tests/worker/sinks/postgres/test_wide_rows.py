"""Rows with more columns than a staging table can have, beside what else it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import delete, insert, message, table, update
from tests.worker.sinks.postgres.conftest import Target


def made(new_target: Callable[..., Target], columns: int, key: str, **changed: int) -> Target:
    target = new_target(**changed)
    target.database.execute(f"CREATE TABLE wide ({', '.join(f'c{n} text' for n in range(1, columns + 1))}{key})")
    return target


def row(columns: int, first: bytes, second: bytes) -> tuple[bytes | None, ...]:
    """As wide as a page has room for: a target holds it, and no table holds two of them."""
    size = min(24, 7000 // columns - 1)
    return first, second, None, *[(b"a\tb\\c\n" + b"x" * size)[:size]] * (columns - 3)


@pytest.mark.parametrize("columns", [140, 320, 800, 900, 1400])
def test_a_wide_table_without_a_key_has_its_changes_applied_row_by_row(new_target: Callable[..., Target], columns: int) -> None:
    target = made(new_target, columns, "")
    wide = table("public.wide", *(f"c{n} text" for n in range(1, columns + 1)), key=(), identity=ReplicaIdentity.FULL)
    rows = [row(columns, b"%d" % n, b"old") for n in range(5)]
    later = row(columns, b"1", b"new")
    apply(target.sink, [[message(1, *(insert(wide, *each) for each in rows), insert(wide, *rows[0]))]])
    apply(target.sink, [[message(2, update(wide, *later, old=rows[1]), delete(wide, *rows[0]), insert(wide, *rows[4]))]])
    apply(target.sink, [[message(3, update(wide, *row(columns, b"2", b"newer"), old=rows[2]), delete(wide, *rows[3]))]])
    found = target.rows("SELECT c1, c2, c3, c4 FROM wide ORDER BY 1, 2")
    end = (rows[0][3] or b"").decode()
    assert found == [("0", "old", None, end), ("1", "new", None, end), ("2", "newer", None, end), *[("4", "old", None, end)] * 2]


@pytest.mark.parametrize("columns", [1599, 1600])
def test_a_wide_row_whose_large_value_was_not_sent_keeps_it(new_target: Callable[..., Target], columns: int) -> None:
    target = made(new_target, columns, ", PRIMARY KEY (c1)")
    wide = table("public.wide", *(f"c{n} text" for n in range(1, columns + 1)), key=["c1"])
    short = (None,) * (columns - 3)
    apply(target.sink, [[message(1, *(insert(wide, b"%d" % n, b"old", b"large", *short) for n in range(4)))]])
    patch = update(wide, b"1", b"new", UNCHANGED, *short)
    move = update(wide, b"30", b"moved", UNCHANGED, *short, old=(b"3", *(None,) * (columns - 1)))
    apply(target.sink, [[message(2, patch, move)]])
    found = target.rows("SELECT c1, c2, c3 FROM wide ORDER BY 1")
    assert found == [("0", "old", "large"), ("1", "new", "large"), ("2", "old", "large"), ("30", "moved", "large")]


def test_a_large_piece_of_wide_rows_waits_as_text_and_is_staged_by_the_driver(new_target: Callable[..., Target]) -> None:
    target = made(new_target, 900, "", inline_bytes=1000)
    wide = table("public.wide", *(f"c{n} text" for n in range(1, 901)), key=(), identity=ReplicaIdentity.FULL)
    rows = [row(900, b"%d" % n, b"old") for n in range(20)]
    apply(target.sink, [[message(1, *(insert(wide, *each) for each in rows))]])
    apply(target.sink, [[message(2, *(update(wide, *row(900, b"%d" % n, b"new"), old=rows[n]) for n in range(20)))]])
    assert target.rows("SELECT c2, count(*) FROM wide GROUP BY 1") == [("new", 20)]
