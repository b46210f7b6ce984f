"""How the next attempt at a batch is made, by how the ones before ended."""

from __future__ import annotations

import psycopg
import pytest

from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.testing.changes_builder import table
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.sinks.postgres.attempts import LABELLED_BATCHES, LAST_CHANGE_PASSES, TASK_LOCK_ATTEMPTS, Attempts
from pgsluice.worker.sinks.postgres.merge.staging import StageNames
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.target.failure import PieceError
from pgsluice.worker.sinks.postgres.writer import PostgresWriter

ORDERS = table("public.orders", "id bigint", "note text")


@pytest.fixture
def writer() -> PostgresWriter:
    """It connects to nothing before it writes."""
    nowhere = PostgresSettings("", 0, "", "", "", "", "", "", "", "")
    settings = PostgresSinkSettings(
        nowhere, sync_schema=True, disable_foreign_keys=False, sync_sequences=False, lock_timeout_s=30, on_missing_row="count"
    )
    return PostgresWriter(settings, StageNames("group", "worker"), inline_bytes=0)


def test_a_batch_whose_outcome_a_constraint_refuses_is_written_one_by_one_and_the_next_is_folded_again(
    writer: PostgresWriter,
) -> None:
    attempts = Attempts(most_stages=8)
    assert not attempts.next_writer(writer).one_by_one
    assert isinstance(attempts.refusal(PieceError(ORDERS, psycopg.errors.UniqueViolation()), "messages 1 to 2"), TransientError)
    assert attempts.next_writer(writer).one_by_one
    attempts.changes_applied()
    attempts.committed()
    assert not attempts.next_writer(writer).one_by_one


def test_rows_stay_labelled_for_some_batches_after_one_was_refused(writer: PostgresWriter) -> None:
    attempts = Attempts(most_stages=8)
    refused = PieceError(ORDERS, psycopg.errors.NumericValueOutOfRange())
    assert isinstance(attempts.refusal(refused, "messages 1 to 2"), WriteAgain)
    assert isinstance(attempts.refusal(refused, "messages 1 to 2"), TerminalError)
    for _ in range(LABELLED_BATCHES):
        assert attempts.next_writer(writer).labelled
        attempts.changes_applied()
    assert not attempts.next_writer(writer).labelled


def test_many_attempts_at_a_batch_are_the_last_ones_in_the_end_and_blame_no_first_change(writer: PostgresWriter) -> None:
    attempts = Attempts(most_stages=8)
    written = [attempts.next_writer(writer) for _ in range(TASK_LOCK_ATTEMPTS)]
    assert [each.is_last for each in written].index(True) == TASK_LOCK_ATTEMPTS - 1
    assert not any(each.blame_first for each in written)


def test_first_changes_are_blamed_after_some_passes_that_rejected_others_of_the_batch(writer: PostgresWriter) -> None:
    attempts = Attempts(most_stages=8)
    written = []
    for _ in range(LAST_CHANGE_PASSES + 1):
        written.append(attempts.next_writer(writer))
        attempts.rejected()
    assert [each.blame_first for each in written].index(True) == LAST_CHANGE_PASSES
    attempts.committed()
    assert not attempts.next_writer(writer).blame_first


def test_a_batch_has_no_more_stages_than_the_target_has_room_for(writer: PostgresWriter) -> None:
    attempts = Attempts(most_stages=8)
    attempts.limit_stages(12)
    assert attempts.next_writer(writer).stages == 8
    attempts.limit_stages(3)
    assert attempts.next_writer(writer).stages == 3


def test_batches_overlap_only_while_they_are_written_as_any_other() -> None:
    for refused in (psycopg.errors.UniqueViolation(), psycopg.errors.NumericValueOutOfRange()):
        attempts = Attempts(most_stages=8)
        assert attempts.is_ordinary
        attempts.refusal(PieceError(ORDERS, refused), "messages 1 to 2")
        assert not attempts.is_ordinary
        for _ in range(LABELLED_BATCHES):
            attempts.changes_applied()
        assert attempts.is_ordinary


def test_a_commit_that_failed_may_have_left_something_also_of_the_batch_after_it() -> None:
    attempts = Attempts(most_stages=8)
    attempts.begin_commit()
    assert not attempts.committed()
    attempts.begin_commit()
    attempts.begin_commit()
    assert attempts.committed()
    attempts.begin_commit()
    assert not attempts.committed()
