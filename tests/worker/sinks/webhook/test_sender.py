"""What statuses and Retry-After mean."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pgsluice.worker.sinks.webhook.sender import LONGEST_RETRY_AFTER_S, RequestOutcome, outcome_of, parse_retry_after

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("statuses", "meaning"),
    [
        ((200, 201, 202, 204, 299), RequestOutcome.ACCEPTED),
        ((408, 425, 429, 500, 502, 503, 504, 599), RequestOutcome.TRY_AGAIN),
        ((400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 451, 499), RequestOutcome.REFUSED),
        ((101, 300, 301, 302, 303, 304, 307, 308), RequestOutcome.MISDIRECTED),
    ],
)
def test_a_status_means(statuses: tuple[int, ...], meaning: RequestOutcome) -> None:
    assert {status: outcome_of(status) for status in statuses} == dict.fromkeys(statuses, meaning)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        (" 0 ", 0),
        ("Sat, 31 Jan 2026 12:01:30 GMT", 90),
        ("Sat, 31 Jan 2026 11:00:00 GMT", 0),
        ("Sat, 31 Jan 2026 12:00:05 -0000", 5),
        ("Fri, 31 Jan 2200 12:00:00 GMT", LONGEST_RETRY_AFTER_S),
        ("99999999999999", LONGEST_RETRY_AFTER_S),
        ("", 0),
        ("soon", 0),
        ("-5", 0),
        ("1.5", 0),
        ("Sat, 31 Jan 2026 9999999999:01:30 GMT", 0),
        ("Sat, 31 Jan 0001 00:00:00 +2359", 0),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(header: str, seconds: float) -> None:
    assert parse_retry_after(header, NOW) == seconds
