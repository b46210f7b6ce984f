"""The places file is the administrator's: what it does not hold no pipeline reaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.console.pipelines.places import Places, read_places
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.steps.step import PythonStep
from pgsluice.shared.errors import UsageError

PLACES = """
sources:
  shop: {config: shop.yaml}
  own: {config: own.yaml, trusted: true}
sinks:
  warehouse: {kind: postgres, config: /etc/warehouse.yaml, targets: ["analytics.*", film_titles]}
  lines: {kind: "shop.sinks:Lines", config: lines.yaml, targets: ["*"]}
modules: ["marts.*", titles]
"""


def read(directory: Path, text: str = PLACES) -> Places:
    path = directory / "places.yaml"
    path.write_text(text)
    return read_places(str(path))


def pipeline(*, source: str = "shop", sink: str = "warehouse", target: str = "analytics.film") -> Pipeline:
    schema, _, table = target.rpartition(".")
    return Pipeline("films", "films", "SELECT 1 AS id", schema, table, ("id",), source=source, sink=sink)


def test_configuration_files_are_looked_for_beside_the_places_file(tmp_path: Path) -> None:
    places = read(tmp_path)
    assert places.sources == {name: str(tmp_path / f"{name}.yaml") for name in ("shop", "own")}
    assert places.trusted == {"own"}
    assert {name: sink.config for name, sink in places.sinks.items()} == {
        "warehouse": "/etc/warehouse.yaml",
        "lines": str(tmp_path / "lines.yaml"),
    }


@pytest.mark.parametrize(
    "allowed",
    [
        pipeline(),
        pipeline(target="public.film_titles"),
        pipeline(sink=""),
        pipeline(source=""),
        pipeline(sink="lines", target="public.anything"),
    ],
)
def test_what_they_hold_may_be_named(tmp_path: Path, allowed: Pipeline) -> None:
    read(tmp_path).check(allowed)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (pipeline(source="payroll"), r"names source 'payroll', .* there are shop"),
        (pipeline(source="shop.yaml"), r"names source 'shop.yaml'"),
        (pipeline(sink="lake"), r"names sink 'lake', .* there are warehouse, lines"),
        (pipeline(target="public.users"), r"may not fill public.users in sink 'warehouse'.* analytics.\*, film_titles"),
        (pipeline(target="Analytics.film"), r"may not fill Analytics.film"),
        (pipeline(target="analytics2.film"), r"may not fill"),
        (pipeline(target="other.film_titles"), r"may not fill"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, refused: Pipeline, said: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){said}"):
        read(tmp_path).check(refused)


def test_modules_are_allowed_by_patterns(tmp_path: Path) -> None:
    places = read(tmp_path)
    for name in ("marts.ratings", "marts.eu.ratings", "titles"):
        places.check(replace(pipeline(), steps=(PythonStep(name, "clean"),)))
    for name in ("marts", "martsx", "os", "titles.x", "x.marts.y"):
        with pytest.raises(UsageError, match=f"step 2 of pipeline '.*' names module '{name}', which is not allowed"):
            places.check(replace(pipeline(), steps=(PythonStep("titles", "clean"), PythonStep(name, "clean"))))


def test_everything_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    wrong = """
sources:
  shop: {host: db}
  bare:
sinks:
  Ware house: {kind: oracle, config: w.yaml, targets: ["a.b.c"]}
  lake: {kind: file, config: l.yaml}
secrets: []
"""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, wrong)
    for said in (
        "3: source 'shop': unknown key 'host'",
        "3: source 'shop': config is missing",
        "4: source 'bare' names no configuration file",
        "6: sink 'Ware house': kind 'oracle' is no sink",
        "6: sink 'Ware house': target 'a.b.c' is not a table",
        "7: sink 'lake': targets is missing",
        "8: unknown key 'secrets'",
    ):
        assert f"places.yaml:{said}" in str(caught.value)
