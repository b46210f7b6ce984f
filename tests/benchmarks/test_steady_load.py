"""How latencies and limits are worked out of what was seen."""

from __future__ import annotations

import pytest

from benchmarks.scenarios.saturation import limit
from benchmarks.steady_load import Sightings, percentiles


def test_a_row_counts_as_visible_at_the_first_look_that_saw_its_commit_or_a_later_one() -> None:
    commits = [(10.0, 1), (10.1, 3), (10.2, 2), (10.3, 4), (10.4, 5)]  # ids in the order of commits: 3 before 2
    sightings = Sightings()
    for newest, at in ((1, 10.5), (3, 11.0), (3, 11.5), (5, 12.0)):
        sightings.note(newest, at)
    latencies = sightings.latencies(commits, 10.05, 10.35)
    assert latencies == pytest.approx([11.0 - 10.1, 12.0 - 10.3, 12.0 - 10.2])


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(101)]
    assert percentiles(values, "_ms") == {"p50_ms": 50.0, "p95_ms": 95.0, "p99_ms": 99.0, "max_ms": 100.0}
    assert percentiles([7.0], "_s") == {"p50_s": 7.0, "p95_s": 7.0, "p99_s": 7.0, "max_s": 7.0}


def measured(rate: float, achieved: float, p99_ms: float) -> dict[str, float]:
    return {"rate": rate, "commits_per_s": achieved, "p99_ms": p99_ms}


def test_a_latency_that_passes_a_second_is_the_limit_between_two_rates() -> None:
    found = limit([measured(1000, 1000, 400), measured(2000, 2000, 600), measured(4000, 3990, 1400)])
    assert found == {"sustained_commits_per_s": 2000, "p99_over_1s_commits_per_s": 2995}


def test_a_generator_that_cannot_keep_up_is_the_limit() -> None:
    found = limit([measured(1000, 1000, 400), measured(2000, 1500, 600)])
    assert found == {"sustained_commits_per_s": 1500, "generator_commits_per_s": 1500}


def test_a_load_that_was_borne_has_no_limit() -> None:
    assert limit([measured(1000, 990, 400)]) == {"sustained_commits_per_s": 990}


def test_nothing_is_sustained_when_the_first_rate_is_too_much() -> None:
    assert limit([measured(1000, 990, 2000)]) == {"sustained_commits_per_s": 0, "p99_over_1s_commits_per_s": 495}
