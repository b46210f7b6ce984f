"""How long a failure is followed by a pause."""

from __future__ import annotations

import pytest

from pgsluice.shared.process.retrying import FIRST_PAUSE_S, HEALTHY_S, MAX_PAUSE_S, Backoff


def test_pauses_grow_to_a_limit_and_begin_anew_after_a_healthy_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("pgsluice.shared.process.retrying.time.monotonic", lambda: now)
    backoff = Backoff()
    pauses = [backoff.next_pause_s() for _ in range(20)]
    assert pauses[0] <= FIRST_PAUSE_S * 1.25
    assert all(MAX_PAUSE_S * 0.75 <= pause <= MAX_PAUSE_S * 1.25 for pause in pauses[-10:])
    now += HEALTHY_S + MAX_PAUSE_S + 1
    assert backoff.next_pause_s() <= FIRST_PAUSE_S * 1.25
