"""What is asked of a pipeline's runs, as one record that does not grow."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from pgsluice.shared.broker.record import decode, encode
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunRecord, RunState
from pgsluice.shared.pipelines.run_requests import (
    MOST_REQUESTS,
    AskedBy,
    RequestState,
    RunRequest,
    RunRequests,
    RunWish,
)


def test_the_oldest_requests_that_are_closed_are_forgotten_and_open_ones_never() -> None:
    requests = RunRequests()
    for number in range(MOST_REQUESTS + 10):
        state = RequestState.TAKEN if number == 3 else RequestState.DONE
        requests = requests.with_request(
            RunRequest(str(number), full=False, by=AskedBy.SCHEDULE, requested_at="then", state=state)
        )
    assert [each.id for each in requests.requests] == ["3", *map(str, range(11, MOST_REQUESTS + 10))]


@pytest.mark.parametrize(
    ("older", "paused", "cancelled_run"),
    [({}, False, 0), ({"wish": "pause"}, True, 0), ({"wish": "cancel", "wish_run": 3}, False, 3)],
)
def test_a_version_with_one_wish_is_understood(older: dict[str, object], paused: bool, cancelled_run: int) -> None:
    known = decode(RunRequests, orjson.dumps(older))
    assert (known.paused, known.cancelled_run) == (paused, cancelled_run)


def test_a_version_with_one_wish_obeys_a_pause_before_a_cancel_and_no_pause_that_was_lifted() -> None:
    cancelled = RunRequests(cancelled_run=3)
    paused = replace(cancelled, paused=True)
    written = [orjson.loads(encode(known)) for known in (cancelled, paused, paused.resumed(), RunRequests(paused=True).resumed())]
    assert [(each["wish"], each["wish_run"]) for each in written] == [("cancel", 3), ("pause", 0), ("cancel", 3), ("run", 0)]
    assert paused.resumed().wishes(3) is RunWish.CANCEL


def test_a_wish_to_cancel_is_about_one_run_and_a_pause_about_whichever_is_in_hand() -> None:
    cancelling = RunRequests(cancelled_run=3)
    assert [cancelling.wishes(run) for run in (2, 3, 4)] == [RunWish.RUN, RunWish.CANCEL, RunWish.RUN]
    assert [RunRequests(paused=True).wishes(run) for run in (2, 3)] == [RunWish.PAUSE, RunWish.PAUSE]


def test_a_run_that_began_after_somebody_cancelled_the_one_before_is_not_cancelled() -> None:
    runs = tuple(RunRecord(number, RunState.PAUSED, is_full=False, started_at="then") for number in (1, 2))
    record = PipelineRecord("ratings", "f", "s", runs=runs)
    for number, states in ((1, [RunState.PAUSED, RunState.PAUSED]), (2, [RunState.PAUSED, RunState.CANCELLED])):
        assert [run.state for run in record.with_cancelled(number).runs] == states
