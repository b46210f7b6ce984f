"""What becomes of batches that fail: with real Spark, a real stream and a small sink that fails as it is told."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsluice.shared.errors import Cause, MissingPrivilegeError, PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.spark.session import Spark
from pgsluice.worker.batches import batch_loop
from pgsluice.worker.batches.batch_loop import start_batches
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection, WriteAgain
from pgsluice.worker.sinks.sink import Delivery
from tests.borrowed_spark import borrowed_spark
from tests.freed_memory import KEPT_BYTES, keep_freed_memory, resident_bytes
from tests.logged import fields_of
from tests.servers import NatsServer
from tests.waiting import DeadlineError, wait_until
from tests.worker.batches.failing_sinks import LONGEST_S, FailingWriter, Harness, SilentWriter
from tests.worker.published_stream import ids_in, position_of
from tests.worker.running_worker import running_worker


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    with borrowed_spark() as spark:
        yield spark


@pytest.fixture
def harness(spark: Spark, nats_server: NatsServer, group: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(spark, nats_server, group, tmp_path / "changes.db")
    yield made
    made.close()


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_batch_that_fails_for_now_is_applied_once_at_the_next_attempt(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    sink = harness.sink(TransientError("the target is away", "wait"), TransientError("it still is", "wait"))
    assert harness.apply(sink).sequence == 3
    assert ids_in(harness.path) == [1, 2, 3]
    retries = [fields_of(each) for each in caplog.records if each.getMessage() == "a batch could not be applied, trying again"]
    assert [fields["reason"] for fields in retries] == ["the target is away: wait", "it still is: wait"]
    assert retries[0]["pause_s"] < retries[1]["pause_s"]
    [told] = harness.told()
    assert (told.changes, told.attempts, told.waited_for, told.reason) == (3, 3, Cause.OTHER, "it still is: wait")
    assert told.waited_s >= retries[0]["pause_s"] + retries[1]["pause_s"]


def test_a_batch_that_fails_for_now_is_given_up_when_the_worker_stops(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    sink = harness.sink(*(TransientError("the target is away", "wait") for _ in range(1000)))
    batches = harness.start(sink)
    try:
        wait_until(lambda: sink.commits >= 2, deadline_s=LONGEST_S, what="a second attempt")
    finally:
        batches.stop()
        sink.close()
    assert set(events(caplog)) == {"a batch could not be applied, trying again"}  # and none that was broken off
    assert ids_in(harness.path) == []


def test_a_right_that_is_taken_away_is_waited_for_and_told_of(harness: Harness) -> None:
    sink = harness.sink(*(MissingPrivilegeError("the target does not permit it", "grant INSERT") for _ in range(2)))
    assert harness.apply(sink).sequence == 3
    assert ids_in(harness.path) == [1, 2, 3]
    [told] = harness.told()
    assert (told.attempts, told.waited_for, told.reason) == (3, Cause.TARGET, "the target does not permit it: grant INSERT")
    assert harness.registry.letters == []


@pytest.mark.parametrize(
    ("delivery", "seen"),
    [
        (Delivery.AHEAD, [["m1", "m2"], ["m1", "m2", "m3"], ["m1", "m2", "m3"]]),
        (Delivery.COLLECTED, [["m1"], ["m1", "m2"], ["m1", "m2", "m3"]]),
    ],
)
def test_a_batch_is_written_while_the_one_before_it_is_committed_if_the_sink_says_so(
    harness: Harness, delivery: Delivery, seen: list[list[str]]
) -> None:
    sink = harness.watching_sink(delivery=delivery)
    assert harness.apply(sink).sequence == 3
    assert ids_in(harness.path) == [1, 2, 3]
    assert sink.seen == seen
    assert sink.attempts("m1", "m2", "m3") == [1, 1, 1]


def test_nothing_is_written_ahead_over_a_table_that_is_begun_again_nor_over_the_end_of_the_copy(harness: Harness) -> None:
    harness.copy()
    sink = harness.watching_sink()
    applied = harness.apply(sink)
    assert (applied.snapshot_sequence, applied.sequence) == (4, 3)
    copied = ["c1", "c2", "c3", "c4"]
    assert sink.seen == [copied[:1], copied[:2], copied, copied, [*copied, "m1", "m2"]] + [[*copied, "m1", "m2", "m3"]] * 2


@pytest.mark.parametrize("failure", [TransientError("the target is away", "wait"), WriteAgain()])
def test_what_was_written_ahead_is_thrown_away_when_the_batch_before_it_fails(harness: Harness, failure: Exception) -> None:
    sink = harness.watching_sink(failure)
    assert harness.apply(sink).sequence == 3
    assert ids_in(harness.path) == [1, 2, 3]
    assert sink.attempts("m1", "m2", "m3") == [2, 2, 1]


def test_what_was_written_ahead_is_not_kept_for_a_sink_that_wants_no_more_of_that(harness: Harness) -> None:
    """As the Postgres sink, after its target refused rows."""
    sink = harness.watching_sink(WriteAgain())
    sink.delivery_after_failure = Delivery.COLLECTED
    assert harness.apply(sink).sequence == 3
    assert ids_in(harness.path) == [1, 2, 3]
    assert sink.attempts("m1", "m2", "m3") == [2, 2, 1]


def test_a_batch_that_was_written_ahead_is_written_again_when_it_fails(harness: Harness) -> None:
    sink = harness.watching_sink(None, RejectedChanges([Rejection(position_of(2), "too long")]))
    assert harness.apply(sink).sequence == 3
    assert ids_in(harness.path) == [1, 3]
    assert sink.attempts("m1", "m2") == [1, 2]


def test_a_row_that_is_blocked_since_a_batch_was_written_ahead_is_not_changed_by_it(harness: Harness) -> None:
    sink = harness.watching_sink(RejectedChanges([Rejection(position_of(1), "too long")]))
    assert harness.apply(sink).sequence == 3
    assert ids_in(harness.path) == [2, 3]
    assert sink.attempts("m2") == [2]


def test_while_nothing_comes_spark_is_kept_warm_and_memory_given_back(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_loop, "KEEP_WARM_INTERVAL_S", 0.0)
    monkeypatch.setattr(batch_loop, "LOOK_INTERVAL_S", 0.1)
    sink = harness.sink()
    worker = running_worker(harness.settings, harness.loop, harness.client, harness.spark, sink)
    batches = start_batches(worker)

    def jobs() -> int:
        return len(harness.spark.context.statusTracker().getJobIdsForGroup())

    def is_given_back() -> bool:
        """Not seen where it was given back before it could be measured."""
        held = keep_freed_memory()
        least = resident_bytes() - KEPT_BYTES // 2
        with contextlib.suppress(DeadlineError):
            wait_until(lambda: resident_bytes() < least, deadline_s=LONGEST_S / 20)
            return bool(held)
        return False

    try:
        wait_until(lambda: batches.applied.sequence == 3, deadline_s=LONGEST_S, what="all that there is")
        before = jobs()
        wait_until(lambda: jobs() > before + 1, deadline_s=LONGEST_S, what="jobs of nothing")
        wait_until(is_given_back, deadline_s=LONGEST_S, what="memory for others")
    finally:
        batches.stop()
        sink.close()


def test_a_worker_at_rest_stops_at_once(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it would have looked again."""
    monkeypatch.setattr(batch_loop, "LOOK_INTERVAL_S", LONGEST_S)
    monkeypatch.setattr(batch_loop, "END_DEADLINE_S", LONGEST_S)
    sink = harness.sink()
    batches = start_batches(running_worker(harness.settings, harness.loop, harness.client, harness.spark, sink))
    try:
        wait_until(lambda: batches.applied.sequence == 3, deadline_s=LONGEST_S, what="all that there is")
    finally:
        began_at = time.monotonic()
        batches.stop()
        sink.close()
    assert time.monotonic() - began_at < LONGEST_S / 4


def test_what_comes_between_batches_has_its_turn_though_there_is_always_another_one(
    spark: Spark, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    messages = 30
    harness = Harness(spark, nats_server, group, tmp_path / "changes.db", messages)
    sink = harness.watching_sink()
    batches = harness.start(sink)
    seen: list[int] = []
    try:
        wait_until(lambda: sink.commits, deadline_s=LONGEST_S, what="a first batch")
        assert batches.between_batches(lambda: seen.append(batches.applied.sequence), LONGEST_S)
        wait_until(lambda: batches.ended(0.1), deadline_s=LONGEST_S, what="the end of the batches")
    finally:
        batches.stop()
        sink.close()
        harness.close()
    assert 0 < seen[0] < messages
    assert ids_in(harness.path) == [*range(1, messages + 1)]


def test_a_sink_that_wants_to_look_closer_gets_another_pass_at_once(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    sink = harness.sink(WriteAgain(), WriteAgain())
    assert harness.apply(sink).sequence == 3
    assert sink.commits == 3
    assert ids_in(harness.path) == [1, 2, 3]
    assert events(caplog) == []
    assert harness.registry.letters == []


def test_a_change_that_the_sink_refuses_becomes_a_dead_letter_and_the_rest_is_applied(harness: Harness) -> None:
    sink = harness.sink(WriteAgain(), RejectedChanges([Rejection(position_of(2), "too long")]))
    assert harness.apply(sink).sequence == 3
    assert ids_in(harness.path) == [1, 3]
    harness.registry.load()
    (letter,) = [stored.letter for stored in harness.registry.letters]
    assert (letter.position, letter.reason, letter.sequence) == (position_of(2), "too long", 2)


def test_a_sink_is_told_of_passes_that_rejected_changes_and_of_no_others(harness: Harness) -> None:
    away = TransientError("the target is away", "wait")
    sink = harness.sink(away, WriteAgain(), RejectedChanges([Rejection(position_of(2), "too long")]), away)
    assert harness.apply(sink).sequence == 3
    assert (sink.commits, sink.rejecting_passes) == (5, 1)


def test_a_rejection_of_a_change_that_is_not_in_the_batch_is_a_defect_of_the_sink(harness: Harness) -> None:
    sink = harness.sink(RejectedChanges([Rejection(position_of(77), "too long")]))
    with pytest.raises(TerminalError, match="a defect of the sink"):
        harness.apply(sink)
    assert ids_in(harness.path) == []


def test_a_sink_whose_tasks_return_no_receipt_is_told_so(harness: Harness) -> None:
    with pytest.raises(TerminalError, match="the tasks of messages 1 to 3 returned no receipt"):
        harness.apply(harness.sink(task=SilentWriter()))
    assert ids_in(harness.path) == []


@pytest.mark.parametrize(("failure", "error_class"), [("usage", UsageError), ("defect", TerminalError)])
def test_what_ends_a_task_ends_the_worker_as_it_would_in_the_driver(
    harness: Harness, failure: str, error_class: type[PgsluiceError]
) -> None:
    with pytest.raises(error_class) as raised:
        harness.apply(harness.sink(task=FailingWriter(failure)))
    assert raised.value.exit_code == error_class.exit_code
    assert "quotes" not in str(raised.value)
    assert failure == "usage" or "an unexpected error ended a task (ValueError at " in raised.value.fact
    assert ids_in(harness.path) == []


def test_a_defect_in_a_commit_ends_the_worker_at_once(harness: Harness) -> None:
    sink = harness.sink(ValueError("which quotes a row"))
    with pytest.raises(TerminalError, match="an unexpected error ended a batch") as raised:
        harness.apply(sink)
    assert "quotes" not in str(raised.value)
    assert sink.commits == 1


def test_a_batch_whose_python_process_was_killed_is_tried_again(harness: Harness, tmp_path: Path) -> None:
    assert harness.apply(harness.sink(task=FailingWriter("killed", tmp_path / "killed"))).sequence == 3
    assert (tmp_path / "killed").exists()
    assert ids_in(harness.path) == [1, 2, 3]


def test_a_batch_whose_python_processes_are_killed_each_time_is_left_to_a_later_start(harness: Harness) -> None:
    with pytest.raises(TransientError, match="Spark aborted a job") as raised:
        harness.apply(harness.sink(task=FailingWriter("killed")))
    assert raised.value.exit_code == 75
    assert ids_in(harness.path) == []
