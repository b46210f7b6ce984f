"""How long a failure is followed by a pause."""

from __future__ import annotations

import pytest

from pgsluice.shared.process.retrying import DEFAULT_POLICY, HEALTHY_S, Backoff, Pauses


@pytest.mark.parametrize("pauses", [DEFAULT_POLICY.source, DEFAULT_POLICY.target, DEFAULT_POLICY.webhook])
def test_pauses_grow_to_a_limit_and_begin_anew_after_a_healthy_minute(monkeypatch: pytest.MonkeyPatch, pauses: Pauses) -> None:
    now = 1000.0
    monkeypatch.setattr("pgsluice.shared.process.retrying.time.monotonic", lambda: now)
    backoff = Backoff(pauses)
    waited = [backoff.next_pause_s() for _ in range(20)]
    assert waited[0] <= pauses.first_s * 1.25
    assert all(pauses.longest_s * pauses.least <= pause_s <= pauses.longest_s * 1.25 for pause_s in waited[-10:])
    now += HEALTHY_S + pauses.longest_s + 1
    assert backoff.next_pause_s() <= pauses.first_s * 1.25


def test_a_success_makes_the_next_failure_a_first_one() -> None:
    backoff = Backoff(DEFAULT_POLICY.source)
    waited = [backoff.next_pause_s() for _ in range(10)]
    assert waited[-1] > DEFAULT_POLICY.source.first_s * 1.25
    backoff.note_success()
    assert backoff.next_pause_s() <= DEFAULT_POLICY.source.first_s * 1.25


def test_a_receiver_that_named_a_time_is_never_asked_before_it() -> None:
    assert all(10.0 <= DEFAULT_POLICY.webhook.varied(10.0) <= 12.5 for _ in range(100))
    assert all(DEFAULT_POLICY.webhook.after(1000) >= DEFAULT_POLICY.webhook.longest_s for _ in range(100))
