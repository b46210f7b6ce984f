"""Figures over time: what is kept, for how long, and what is not known."""

from __future__ import annotations

from pgsluice.console.server.live.series import KEPT_STEPS, STEP_S, SeriesName, SeriesStore

LAG = SeriesName.LAG_S


def test_figures_come_back_at_their_times() -> None:
    store = SeriesStore()
    for step, figure in ((100, 1.5), (101, None), (104, 2.0)):
        store.add("g", step, {LAG: figure})
    series = store.read("g", LAG, 100 * STEP_S)
    assert (series.start_s, series.values) == (100 * STEP_S, (1.5, None, None, None, 2.0))
    assert store.read("g", LAG, 103 * STEP_S + 1).values == (2.0,)
    assert store.read("g", LAG, 200 * STEP_S).values == ()
    assert store.read("nobody", LAG, 0).values == ()


def test_a_day_is_kept() -> None:
    store = SeriesStore()
    for step in range(KEPT_STEPS + 50):
        store.add("g", step, {LAG: float(step)})
    series = store.read("g", LAG, 0)
    assert (len(series.values), series.start_s, series.values[0]) == (KEPT_STEPS, 50 * STEP_S, 50.0)


def test_a_long_absence_is_no_long_memory() -> None:
    store = SeriesStore()
    store.add("g", 1, {LAG: 1.0})
    store.add("g", 10 * KEPT_STEPS, {LAG: 2.0})
    series = store.read("g", LAG, 0)
    assert (len(series.values), series.values[-1], set(series.values[:-1])) == (KEPT_STEPS, 2.0, {None})


def test_a_clock_that_goes_back_changes_nothing() -> None:
    store = SeriesStore()
    store.add("g", 10, {LAG: 1.0})
    store.add("g", 5, {LAG: 9.0})
    assert store.read("g", LAG, 0).values == (1.0,)
