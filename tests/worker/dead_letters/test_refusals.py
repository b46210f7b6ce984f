"""Telling whether the rows or the destination are at fault when rows are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pgsluice.shared.errors import Cause, MissingPrivilegeError, TransientError
from pgsluice.worker.dead_letters.refusals import MOST_REFUSALS, Refusals, as_waiting

TAKEN = ""
ROW, OTHER, PLACE = "too long", "no number", "not found"


def refusals_of(answers: Sequence[str], refusals: Refusals | None = None) -> Refusals:
    refusals = refusals or Refusals()
    for answer in answers:
        if answer == TAKEN:
            refusals.note_taken()
        else:
            refusals.note_refused(answer, speaks_of_place=answer == PLACE)
    return refusals


@pytest.mark.parametrize(
    ("answers", "is_at_fault"),
    [
        pytest.param([ROW] * MOST_REFUSALS, True, id="all of a batch"),
        pytest.param([ROW] * (MOST_REFUSALS - 1), False, id="all of a small batch"),
        pytest.param([ROW], False, id="a batch of one row"),
        pytest.param([PLACE], False, id="a batch of one row at the wrong place"),
        pytest.param([PLACE] * 2, True, id="all of a small batch at the wrong place"),
        pytest.param([ROW] * MOST_REFUSALS + [TAKEN], False, id="all but the last"),
        pytest.param([TAKEN] + [ROW] * MOST_REFUSALS, False, id="all but the first"),
        pytest.param([PLACE, TAKEN, PLACE], False, id="all but one between at the wrong place"),
        pytest.param([TAKEN, PLACE, PLACE], True, id="the place went away in the batch"),
        pytest.param([ROW, OTHER] * MOST_REFUSALS, False, id="two reasons"),
        pytest.param([PLACE, ROW], False, id="one reason speaks of the place, one of the row"),
        pytest.param([TAKEN] * 3, False, id="nothing is refused"),
        pytest.param([], False, id="nothing is sent"),
    ],
)
def test_a_place_that_refuses_everything_for_one_reason_is_at_fault(answers: Sequence[str], is_at_fault: bool) -> None:
    refusals = refusals_of(answers)
    assert refusals.is_place_at_fault is is_at_fault
    if is_at_fault:
        with pytest.raises(
            TransientError, match=r"the receiver refuses everything that is sent to it: \w+ \w+: mend it"
        ) as raised:
            refusals.check("the receiver", "mend it")
        assert raised.value.cause is Cause.TARGET
    else:
        refusals.check("the receiver", "mend it")


def test_what_was_taken_of_a_batch_counts_in_its_later_passes_and_not_in_the_next_batch() -> None:
    refusals = refusals_of([TAKEN, ROW])
    refusals.begin_pass()
    assert not refusals_of([ROW] * MOST_REFUSALS, refusals).is_place_at_fault
    refusals.begin_batch()
    assert refusals_of([ROW] * MOST_REFUSALS, refusals).is_place_at_fault


def test_a_right_that_is_lacking_is_waited_for_and_says_what_to_grant() -> None:
    away = TransientError("the target is away")
    assert as_waiting(away) is away
    waiting = as_waiting(MissingPrivilegeError("the target does not permit it", "grant INSERT"))
    assert (str(waiting), waiting.cause) == ("the target does not permit it: grant INSERT", Cause.TARGET)
