"""What is made of samples over time."""

from __future__ import annotations

import pytest

from benchmarks.scenarios.endurance import growth


def sample(minute: float, pss_mb: float, rss_mb: float) -> dict[str, float]:
    return {"at_s": 60 * minute, "nats pss_mb": pss_mb, "nats rss_mb": rss_mb}


def test_growth_is_the_slope_after_the_first_ten_minutes() -> None:
    warming_up = [sample(minute, 100 * minute, 5) for minute in range(10)]
    steady = [sample(minute, 1000 + minute / 60 * 7, 5) for minute in range(10, 61)]
    figures = growth(warming_up + steady, "nats")
    assert figures["pss_mb_per_h"] == pytest.approx(7)
    assert figures["rss_mb_per_h"] == pytest.approx(0)
    assert figures["last_pss_mb"] - figures["first_pss_mb"] == pytest.approx(7 * 50 / 60)


def test_growth_of_a_short_run_is_that_of_its_last_two_thirds() -> None:
    minutes = (0, 0.4, 0.6, 1.0, 1.5)
    figures = growth([sample(minute, 1000 - 500 * (minute > 0.5), 1) for minute in minutes], "nats")
    assert figures["pss_mb_per_h"] == pytest.approx(0)
    assert figures["first_pss_mb"] == 500


def test_a_role_whose_processes_are_gone_has_no_memory() -> None:
    figures = growth([sample(0, 1, 1), sample(1, 1, 1), {"at_s": 120}], "nats")
    assert (figures["first_pss_mb"], figures["last_pss_mb"]) == (1, 0)
