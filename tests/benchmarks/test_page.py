"""The page of results: what it says of files, and what its plots show."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from benchmarks.bar_chart import draw_stacked
from benchmarks.line_chart import Line, draw
from benchmarks.measurement import NATIVE, Run
from benchmarks.page import page
from benchmarks.plots import plots
from benchmarks.processes import Usage
from benchmarks.report import document
from benchmarks.results import load
from benchmarks.scenarios import SCENARIOS
from tests.misses import no_misses


def a_run(contestant: str, repetition: int, rate: float, ratio: float) -> Run:
    usage = {part: Usage(cpu_s=0.001, largest_bytes=2_000_000, together_bytes=3_000_000) for part in ("nats", "replicator")}
    usage["elsewhere"] = Usage(7.0, 0, 0)
    return Run("backlog", contestant, repetition, {"changes_per_s": rate, "ratio": ratio}, 1000, usage)


def written(directory: Path, name: str, *runs: Run) -> Path:
    path = directory / name
    path.write_bytes(orjson.dumps(document(runs)))
    return path


def test_a_page_shows_medians_with_their_range_and_judges_goals_by_them(tmp_path: Path) -> None:
    ratios = (0.5, 0.6, 1.4)
    runs = [a_run("both", number, 1000.0 * number, ratio) for number, ratio in enumerate(ratios, 1)]
    text = page(load([written(tmp_path, "bench.json", *runs)]))
    assert "| both | 2,000 (1,000 to 3,000) | 0.60 (0.50 to 1.40) |" in text
    assert "| backlog | both | ratio | 0.60 | ≥ 0.75 | **missed** |" in text
    assert "- backlog, both: 0.60 of native's rate" in text
    assert f"- Machine: {os.cpu_count()} cores" in text


def test_a_scenario_measured_again_replaces_its_earlier_runs(tmp_path: Path) -> None:
    first = written(tmp_path, "first.json", a_run("both", 1, 1000.0, 0.1))
    second = written(tmp_path, "second.json", a_run("both", 1, 2000.0, 0.9))
    [measured] = load([first, second])
    assert [run.figures["ratio"] for run in measured.runs] == [0.9]


def test_a_plot_has_bars_as_long_as_their_values(tmp_path: Path) -> None:
    runs = (a_run(NATIVE, 1, 1000.0, 1.0), a_run("both", 1, 500.0, 0.5))
    [measured] = load([written(tmp_path, "bench.json", *runs)])
    svg = plots(measured)["backlog"]
    ElementTree.fromstring(svg)
    assert bar_widths(svg)[1] == pytest.approx(bar_widths(svg)[0] / 2, abs=0.2)


def bar_widths(svg: str) -> list[float]:
    return [float(width) for width in re.findall(r"<rect x='[\d.]+' y='[\d.]+' width='([\d.]+)'", svg)]


def test_a_page_sums_up_what_a_change_costs_and_leaves_the_rest_of_the_machine_out(tmp_path: Path) -> None:
    [measured] = load([written(tmp_path, "bench.json", a_run("both", 1, 1000.0, 0.1))])
    assert "| both | together | 0.00 | 2.00 | 0 | 0 |" in page([measured])
    assert ">2.00</text>" in plots(measured)["backlog_cpu"]


def test_a_page_compares_what_was_measured_before(tmp_path: Path) -> None:
    before = written(tmp_path, "before.json", a_run("both", 1, 1000.0, 0.1), a_run("gone", 1, 1.0, 0.1))
    after = written(tmp_path, "after.json", a_run("both", 1, 1500.0, 0.9), a_run("new", 1, 1.0, 0.1))
    measured = load([after], [before])
    text = page(measured)
    assert "| backlog | both | changes_per_s | 1,000 | 1,500 | 1.50 |" in text
    assert "| backlog | both | together µs | 2.00 | 2.00 | 1.00 |" in text
    assert "| backlog | new |" not in text
    assert "Before and after" not in page(load([after]))
    svg = plots(measured[0])["backlog"]
    drawn = [label for label in ("both, before", "both", "gone", "new") if f">{label}</text>" in svg]
    assert drawn == ["both, before", "both", "new"]


def test_runs_without_changes_have_costs_but_none_for_each_change(tmp_path: Path) -> None:
    resting = Run("idle", "whole machine", 1, {}, 0, {"nats": Usage(1.5, 0, 0)})
    busy = Run("idle", "worker in all", 1, {"cpu_s_per_min": 3.1}, 0)
    [measured] = load([written(tmp_path, "bench.json", busy, resting)])
    assert "| whole machine | nats | 1.50 |  | 0 | 0 |" in page([measured])
    assert list(plots(measured)) == ["idle"]


def test_samples_are_drawn_over_time(tmp_path: Path) -> None:
    samples = [{"at_s": 60.0 * minute, "nats pss_mb": 10.0 * minute, "lag_s": 0.5} for minute in range(3)]
    [measured] = load([written(tmp_path, "bench.json", Run("endurance", "group", 1, {}, 0, {}, samples))])
    drawn = plots(measured)
    assert list(drawn) == ["endurance_pss_mb", "endurance_lag_s"]
    assert ">nats</text>" in drawn["endurance_pss_mb"]
    places = polylines(drawn["endurance_pss_mb"])[0]
    assert places[1] == pytest.approx(((places[0][0] + places[2][0]) / 2, (places[0][1] + places[2][1]) / 2), abs=0.1)


def test_rates_of_a_contestant_are_one_line_and_those_of_before_another(tmp_path: Path) -> None:
    runs = [
        Run("saturation", f"native, {rate}/s", 1, {"p50_ms": 2.0, "p99_ms": rate, "commits_per_s": rate}, 10)
        for rate in (100, 1000, 10_000)
    ]
    after, before = written(tmp_path, "after.json", *runs), written(tmp_path, "before.json", *runs[:2])
    [measured] = load([after], [before])
    svg = plots(measured)["saturation"]
    assert sorted(len(places) for places in polylines(svg)) == [2, 2, 3, 3]
    assert svg.count("stroke-dasharray") == 2
    assert [svg.count(f">native, {figure}</text>") for figure in ("p50_ms", "p99_ms")] == [1, 1]


def polylines(svg: str) -> list[list[tuple[float, float]]]:
    ElementTree.fromstring(svg)
    found = re.findall(r"<polyline points='([^']+)'", svg)
    return [[(float(x), float(y)) for x, y in (place.split(",") for place in points.split())] for points in found]


def test_a_logarithmic_line_is_straight_for_powers() -> None:
    [places] = polylines(draw("title", "x", [Line("line", [(1, 10), (10, 100), (100, 1000)])], is_logarithmic=True))
    (x1, y1), middle, (x3, y3) = places
    assert middle == pytest.approx(((x1 + x3) / 2, (y1 + y3) / 2), abs=0.1)
    assert y1 > y3


def test_stacked_parts_follow_each_other() -> None:
    svg = draw_stacked("title", ("source", "nats", "target"), {"both": {"target": 3.0, "source": 1.0}})
    bars = re.findall(r"<rect x='([\d.]+)' y='[\d.]+' width='([\d.]+)' height='14.0'", svg)
    (x1, width1), (x2, width2) = ((float(x), float(width)) for x, width in bars)
    assert x2 == pytest.approx(x1 + width1, abs=0.1)
    assert width2 == pytest.approx(3 * width1, abs=0.3)


def test_every_scenario_says_what_it_measures() -> None:
    silent = (name for name, scenario in SCENARIOS.items() if len(scenario.about) <= len(scenario.title))
    no_misses(silent, "say in the docstring of the scenario's module what it measures")
