"""What is asked of a pipeline's runs, as one record that does not grow."""

from __future__ import annotations

from pgsluice.shared.pipelines.run_requests import MOST_REQUESTS, AskedBy, RequestState, RunRequest, RunRequests


def test_the_oldest_requests_that_are_closed_are_forgotten_and_open_ones_never() -> None:
    requests = RunRequests()
    for number in range(MOST_REQUESTS + 10):
        state = RequestState.TAKEN if number == 3 else RequestState.DONE
        requests = requests.with_request(
            RunRequest(str(number), full=False, by=AskedBy.SCHEDULE, requested_at="then", state=state)
        )
    assert [each.id for each in requests.requests] == ["3", *map(str, range(11, MOST_REQUESTS + 10))]
