"""Keys WITHOUT OVERLAPS at the target (PostgreSQL 18): with a unique index beside them they are keys as any other."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.testing.batch import apply_copied
from pgsluice.testing.changes_builder import copied, delete, insert, restart, table, update
from tests.worker.sinks.postgres.conftest import Target

BOOKINGS = table("public.bookings", "room int4range", "during daterange", "guest text", key=("room", "during"))
MADE = "CREATE TABLE bookings (room int4range, during daterange, guest text, {})"
TEMPORAL = "PRIMARY KEY (room, during WITHOUT OVERLAPS)"
ROOM, OTHER = b"[1,2)", b"[2,3)"
JANUARY, FEBRUARY, WINTER = b"[2026-01-01,2026-02-01)", b"[2026-02-01,2026-03-01)", b"[2026-01-01,2026-03-01)"


@pytest.fixture(params=["", "NOT NULL, UNIQUE", "partitioned"])
def bookings(target: Target, request: pytest.FixtureRequest) -> Target:
    """With the index that the refusal asks for."""
    if request.param == "partitioned":
        target.execute(MADE.format(TEMPORAL) + " PARTITION BY LIST (room); CREATE TABLE b PARTITION OF bookings DEFAULT")
    else:
        target.execute(MADE.format(TEMPORAL if not request.param else TEMPORAL.replace("PRIMARY KEY", "UNIQUE")))
    with pytest.raises(TerminalError) as refusal:
        target.apply(insert(BOOKINGS, ROOM, JANUARY, b"Ada"))
    for statement in refusal.value.statements:
        target.execute(statement)
    target.sequence = 0
    target.apply(insert(BOOKINGS, ROOM, JANUARY, b"Ada"), insert(BOOKINGS, ROOM, FEBRUARY, b"Grace"))
    return target


def guests(target: Target) -> list[tuple[str, ...]]:
    return [tuple(row) for row in target.rows("SELECT room::text, during::text, guest FROM bookings ORDER BY 1, 2")]


def test_a_row_that_is_there_is_written_over(bookings: Target) -> None:
    bookings.apply(insert(BOOKINGS, ROOM, JANUARY, b"Alan"))
    bookings.apply(update(BOOKINGS, ROOM, FEBRUARY, b"Kurt"))
    assert [guest for *_, guest in guests(bookings)] == ["Alan", "Kurt"]


def test_a_key_moves_over_what_another_row_leaves(bookings: Target) -> None:
    bookings.apply(
        update(BOOKINGS, OTHER, JANUARY, b"Ada", old=(ROOM, JANUARY, None)),
        update(BOOKINGS, ROOM, WINTER, b"Grace", old=(ROOM, FEBRUARY, None)),
    )
    assert [tuple(row)[1:] for row in guests(bookings)] == [
        ("[2026-01-01,2026-03-01)", "Grace"),
        ("[2026-01-01,2026-02-01)", "Ada"),
    ]


def test_a_row_takes_the_time_of_one_that_went_in_the_same_batch(bookings: Target) -> None:
    bookings.apply(
        delete(BOOKINGS, ROOM, JANUARY, None),
        delete(BOOKINGS, ROOM, FEBRUARY, None),
        insert(BOOKINGS, ROOM, WINTER, b"Edsger"),
    )
    assert [guest for *_, guest in guests(bookings)] == ["Edsger"]


def test_rows_of_a_copy_meet_those_that_are_there(bookings: Target) -> None:
    apply_copied(bookings.sink, [[copied(1, BOOKINGS, (ROOM, JANUARY, b"copied"), (OTHER, JANUARY, b"new"))]])
    assert sorted(guest for *_, guest in guests(bookings)) == ["Grace", "copied", "new"]
    apply_copied(bookings.sink, [[restart(2, BOOKINGS)]])
    apply_copied(bookings.sink, [[copied(3, BOOKINGS, (ROOM, WINTER, b"again"), snapshot="second")]])
    assert [guest for *_, guest in guests(bookings)] == ["again"]


def test_rows_exchange_their_times_in_one_batch(target: Target) -> None:
    """The target's own constraint holds after each of the source's changes, and after no two of their outcomes."""
    shifts = table("public.shifts", "id integer", "during int4range")
    target.execute("CREATE TABLE shifts (id int PRIMARY KEY, during int4range, EXCLUDE USING gist (during WITH &&))")
    target.apply(insert(shifts, b"1", b"[5,9)"), insert(shifts, b"2", b"[1,5)"))
    exchange = (update(shifts, b"1", b"[20,24)"), update(shifts, b"2", b"[5,9)"), update(shifts, b"1", b"[1,5)"))
    batch = [target.messages(exchange)]
    with pytest.raises(TransientError, match="they are applied one by one"):
        target.commit(batch)
    target.commit(batch)
    assert target.rows("SELECT id, during::text FROM shifts ORDER BY id") == [(1, "[1,5)"), (2, "[5,9)")]
