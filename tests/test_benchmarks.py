"""The parts of the benchmarks whose mistakes would make figures wrong without a sign."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from benchmarks.data import DifferenceError, require_equal
from benchmarks.measurement import NATIVE, Run
from benchmarks.page import load, page, plot
from benchmarks.processes import Usage
from benchmarks.report import document
from benchmarks.scenarios import SCENARIOS
from benchmarks.scenarios.latency import Sightings
from tests.servers import Database


def a_run(contestant: str, repetition: int, rate: float, ratio: float) -> Run:
    usage = {"nats": Usage(cpu_s=1.0, largest_bytes=2_000_000, together_bytes=3_000_000)}
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
    assert "| backlog | both | ratio | 0.60 | ≥ 0.80 | **missed** |" in text
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
    ElementTree.fromstring(plot(measured))
    native, both = (float(width) for width in re.findall(r"y='\d+' width='([\d.]+)'", plot(measured)))
    assert both == pytest.approx(native / 2, abs=0.1)


def test_every_scenario_says_what_it_measures() -> None:
    assert all(len(scenario.about) > len(scenario.title) for scenario in SCENARIOS.values())


def test_a_row_counts_as_visible_at_the_first_look_that_saw_its_commit_or_a_later_one() -> None:
    commits = [(10.0, 1), (10.1, 3), (10.2, 2), (10.3, 4), (10.4, 5)]  # ids in the order of commits: 3 before 2
    sightings = Sightings()
    for newest, at in ((1, 10.5), (3, 11.0), (3, 11.5), (5, 12.0)):
        sightings.note(newest, at)
    latencies = sightings.latencies(commits, 10.05, 10.35)
    assert latencies == pytest.approx([11.0 - 10.1, 12.0 - 10.3, 12.0 - 10.2])


def test_a_row_that_differs_fails_a_run(source_database: Database, target_database: Database) -> None:
    for database, value in ((source_database, "a"), (target_database, "b")):
        database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, '{value}')")
    with pytest.raises(DifferenceError, match="table t differs: 1 rows"):
        require_equal(source_database, target_database, "t")
