"""What the driver makes of the answers of tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.errors import (
    Cause,
    HistoryError,
    MissingMessagesError,
    PgsluiceError,
    SinkBehindError,
    TerminalError,
    TransientError,
    UsageError,
)
from pgsluice.shared.wire.position import NO_ANCHOR, Anchor
from pgsluice.worker.batches.receipts import (
    Covered,
    TaskAnswer,
    encode_error,
    read_receipts,
)
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, CatchUp, Lane, Receipt


def answer(
    first_sequence: int,
    last_sequence: int,
    *,
    lane: Lane = Lane.CHANGES,
    changes: int = 1,
    body: bytes | None = b"body",
    error: bytes | None = None,
    after: str | None = None,
    anchor: str | None = None,
) -> TaskAnswer:
    covered = Covered(lane, first_sequence, last_sequence, changes, 7, 8, after, anchor)
    return TaskAnswer(covered, body, error=error)


def coverage(answers: list[TaskAnswer], applied: Applied = NOTHING_APPLIED) -> list[tuple[int, int, int]]:
    return [(r.first_sequence, r.last_sequence, r.changes) for r in read_receipts(answers, applied)]


def test_receipts_keep_what_the_tasks_reported() -> None:
    assert list(read_receipts([answer(1, 3)], NOTHING_APPLIED)) == [Receipt(1, 3, 1, 7, 8, b"body")]


def test_an_answer_without_a_body_extends_the_receipt_before_it() -> None:
    assert coverage([answer(1, 3), answer(4, 5, changes=0, body=None), answer(6, 6)]) == [(1, 5, 1), (6, 6, 1)]


def test_an_answer_without_a_body_that_comes_first_extends_the_receipt_after_it() -> None:
    assert coverage([answer(1, 3, changes=0, body=None), answer(4, 5)]) == [(1, 5, 1)]


def anchor(number: int) -> str:
    return f"0/{number * 16:X}:1 {number} {number}"


def test_tables_that_catch_up_go_on_after_what_they_have_applied() -> None:
    rows = [answer(3, 4, lane=Lane.CATCH_UP, after=anchor(2), anchor=anchor(4))]
    behind = Applied(9, 9 * 16, 9, "then", catch_up=CatchUp(2, 2 * 16, 2, frozenset({7})))
    assert coverage(rows, behind) == [(3, 4, 1)]
    with pytest.raises(HistoryError, match="message 3 of the change stream follows the change at 0/20:1"):
        coverage(rows, replace(behind, catch_up=CatchUp(2, 17, 1, frozenset({7}))))


def test_answers_that_follow_what_is_applied_and_each_other_are_taken() -> None:
    rows = [
        answer(6, 7, after=anchor(5), anchor=anchor(7)),
        answer(8, 8, changes=0, body=None),
        answer(9, 9, after=anchor(7), anchor=anchor(9)),
    ]
    applied = Applied(5, 5 * 16, 5, "then")
    assert coverage(rows, applied) == [(6, 8, 1), (9, 9, 1)]
    assert coverage([answer(1, 3, after=str(NO_ANCHOR), anchor=anchor(3))]) == [(1, 3, 1)]


def test_a_message_that_follows_another_than_the_one_applied_last_is_another_history() -> None:
    row = answer(6, 7, after=anchor(5), anchor=anchor(7))
    for applied in (Applied(5, 4 * 16, 4, "then"), Applied(5, 4 * 16, 5, "then"), Applied(5, 5 * 16, 17, "then")):
        with pytest.raises(HistoryError, match=r"message 6 .* follows the change at 0/50:1, but the applied changes"):
            coverage([row], applied)


def test_partitions_that_do_not_follow_each_other_are_another_history() -> None:
    first, chunk = answer(6, 7, after=anchor(5), anchor=anchor(7)), answer(8, 8, changes=0, body=None)
    for rows in ([first, answer(8, 9, after=anchor(6), anchor=anchor(9))], [first, chunk, answer(9, 9, after=anchor(6))]):
        with pytest.raises(
            HistoryError, match=r"message \d of the change stream follows the change at 0/60:1, but the messages before it"
        ):
            coverage(rows, Applied(5, 5 * 16, 5, "then"))


def test_the_first_batch_after_a_new_place_was_found_follows_what_lies_before_that() -> None:
    row, applied = answer(2, 2, after=anchor(1), anchor=anchor(9)), Applied(1, 3 * 16, 3, "then")
    before = Anchor.parse(anchor(1))
    assert [receipt.last_sequence for receipt in read_receipts([row], applied, before=before)] == [2]
    with pytest.raises(HistoryError):
        list(read_receipts([row], applied))


def test_an_empty_answer_at_the_end_of_a_partition_changes_nothing() -> None:
    assert coverage([answer(1, 3), answer(4, 3, changes=0, body=None), answer(4, 5)]) == [(1, 3, 1), (4, 5, 1)]


@pytest.mark.parametrize("answers", [[answer(2, 3)], [answer(1, 3), answer(5, 6)], [answer(1, 3), answer(3, 6)]])
def test_a_gap_or_an_overlap_is_refused(answers: list[TaskAnswer]) -> None:
    with pytest.raises(TerminalError, match="was expected"):
        coverage(answers)


class ClosedForLunchError(TransientError):
    """One that only the author of a sink knows."""


@pytest.mark.parametrize(
    ("error_class", "arrives_as"),
    [
        (UsageError, UsageError),
        (TransientError, TransientError),
        (TerminalError, TerminalError),
        (HistoryError, HistoryError),
        (SinkBehindError, SinkBehindError),
        (ClosedForLunchError, TransientError),
    ],
)
def test_an_error_that_a_task_sent_is_raised_as_it_was(error_class: type[PgsluiceError], arrives_as: type[PgsluiceError]) -> None:
    error = error_class("a column is missing", "add it")
    row = answer(0, 0, body=None, error=encode_error(error))
    with pytest.raises(arrives_as) as raised:
        coverage([answer(1, 3), row])
    assert type(raised.value) is arrives_as
    assert raised.value.args == error.args


def test_what_an_error_of_a_task_is_about_arrives_with_it() -> None:
    row = answer(0, 0, body=None, error=encode_error(TransientError("no room", "make room", Cause.DISK_FULL)))
    with pytest.raises(TransientError) as raised:
        coverage([row])
    assert raised.value.cause is Cause.DISK_FULL


def test_after_messages_that_are_missing_the_driver_hears_which_one_is_there_again() -> None:
    error = MissingMessagesError("messages are gone", "restore them", next_sequence=9)
    with pytest.raises(MissingMessagesError) as raised:
        coverage([answer(0, 0, body=None, error=encode_error(error))])
    assert raised.value.next_sequence == 9


def test_copied_rows_go_on_where_the_snapshot_stream_is_applied() -> None:
    applied = Applied(sequence=9, commit_lsn=0, committed_at=0, stream_created="", snapshot_sequence=4)
    assert [receipt.copied for receipt in read_receipts([answer(5, 6, lane=Lane.COPIED)], applied)] == [True]
    with pytest.raises(TerminalError, match="was expected"):
        list(read_receipts([answer(5, 6)], applied))
