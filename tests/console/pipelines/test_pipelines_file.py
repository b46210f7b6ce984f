"""The pipelines file says what is read; whatever is wrong with it is told at once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.console.pipelines.pipelines_file import find_pipeline, read_pipelines
from pgsluice.replicator.pipelines.pipeline import Pipeline, RunMode, WriteMode
from pgsluice.shared.errors import UsageError

MINIMAL = """
pipelines:
  ratings:
    query: SELECT id FROM film;
    target: analytics.ratings
    key: [id]
"""

WHOLE = """
pipelines:
  ratings:
    query: SELECT id, part, at FROM film
    target: ratings
    key: [id, part]
    group: film-ratings
    mode: incremental
    incremental-key: at
    incremental-id-key: [id]
    write: append
    overlap: 30s
    nulls: skip
    batch-rows: 10
    tasks: 2
    retries: 0
    statement-timeout: 10m
"""


def read(directory: Path, text: str) -> dict[str, Pipeline]:
    path = directory / "pipelines.yaml"
    path.write_text(text)
    return read_pipelines(str(path), "shop")


def test_the_rest_has_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, MINIMAL) == {
        "ratings": Pipeline("ratings", "ratings", "SELECT id FROM film", "analytics", "ratings", ("id",), search_path="shop")
    }


def test_every_key_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE)["ratings"] == Pipeline(
        name="ratings",
        group="film-ratings",
        query="SELECT id, part, at FROM film",
        schema="public",
        table="ratings",
        key=("id", "part"),
        mode=RunMode.INCREMENTAL,
        write=WriteMode.APPEND,
        incremental_key="at",
        id_key=("id",),
        overlap="30 seconds",
        skips_nulls=True,
        batch_rows=10,
        tasks=2,
        retries=0,
        statement_timeout_s=600.0,
        search_path="shop",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("key: []", "key is missing"),
        ("mode: sometimes", "mode 'sometimes' is unknown"),
        ("mode: incremental", "incremental-key is missing"),
        ("incremental-key: at", "no meaning without 'mode: incremental'"),
        ("write: replace", "write 'replace' is unknown"),
        ("target: a.b.c", "is not a table"),
        ("group: No Group", "is not a valid name"),
        ("overlap: soon", "neither a duration nor a number"),
        ("nulls: maybe", "nulls 'maybe' is unknown"),
        ("batch-rows: 0", "not a whole number from 1 on"),
        ("statement-timeout: ages", "write it like 10m"),
        ("sink: postgres", "unknown key 'sink'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    key = line.partition(":")[0]
    kept = [each for each in MINIMAL.splitlines() if not each.strip().startswith(f"{key}:")]
    with pytest.raises(UsageError, match=r"pipelines\.yaml:\d+: .*" + said):
        read(tmp_path, "\n".join([*kept, f"    {line}", ""]))


def test_two_pipelines_do_not_share_a_group(tmp_path: Path) -> None:
    second = MINIMAL.replace("\npipelines:\n", "").replace("  ratings:", "  others:\n    group: ratings")
    with pytest.raises(UsageError, match="has the group of pipeline 'ratings'"):
        read(tmp_path, MINIMAL + second)


def test_a_pipeline_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    read(tmp_path, MINIMAL)
    with pytest.raises(UsageError, match=r"no pipeline 'rating' in .*: there are ratings"):
        find_pipeline(str(tmp_path / "pipelines.yaml"), "rating", "public")
