"""Which letters a command means."""

from __future__ import annotations

import pytest

from pgsluice.console.dead import LetterSelection
from pgsluice.shared.broker.dead_letter_stream import StoredLetter
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.changes_builder import Change, TruncateChange, insert, table, transaction, update
from tests.worker.encoded_changes import body_of

ORDERS = table("public.orders", "id bigint", "note text")


def stored(number: int, change: Change | TruncateChange, worker: str = "w") -> StoredLetter:
    position = Position(LSN(number), 1)
    body = body_of(transaction(number, change))
    return StoredLetter(DeadLetter(worker, position, "public.orders", "", "", 1, "", 1, body), (number,), is_queued=False)


LETTERS = [
    stored(1, insert(ORDERS, b"1", b"a")),
    stored(2, insert(ORDERS, b"2", b"a")),
    stored(3, update(ORDERS, b"3", b"a", old=(b"1", None))),
    stored(4, update(ORDERS, b"3", b"b")),
    stored(1, insert(ORDERS, b"1", b"a"), worker="x"),
]


def test_letters_are_named_by_their_positions_or_all_at_once() -> None:
    assert LetterSelection("", ("0/2:1", "0/4:1"), every=False).of(LETTERS) == [LETTERS[1], LETTERS[3]]
    assert LetterSelection("", (), every=True).of(LETTERS) == LETTERS


@pytest.mark.parametrize(
    ("positions", "every", "problem"),
    [
        ((), False, "no dead letters are named"),
        (("0/2:1",), True, "no dead letters are named"),
        (("0/2:1", "0/9:1"), False, "there is no dead letter 0/9:1"),
        (("0/1:1",), False, "workers w and x have such dead letters: give --worker"),
    ],
)
def test_a_selection_that_means_no_letters_or_those_of_several_workers_is_refused(
    positions: tuple[str, ...], every: bool, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        LetterSelection("", positions, every).of(LETTERS)
