"""How often the server hears of us."""

from __future__ import annotations

import pytest

from pgsluice.replicator.receiver import MAX_INTERVAL_S, status_interval_s


@pytest.mark.parametrize(
    ("timeout_ms", "interval_s"), [(0, MAX_INTERVAL_S), (60_000, MAX_INTERVAL_S), (3_000, 1.0), (1_000, 1 / 3)]
)
def test_a_status_is_sent_three_times_within_the_servers_patience(timeout_ms: int, interval_s: float) -> None:
    assert status_interval_s(timeout_ms) == pytest.approx(interval_s)
