"""The pipelines file says what is read; whatever is wrong with it is told at once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.console.pipelines.pipelines_file import parse_pipeline, read_pipelines
from pgsluice.replicator.pipelines.pipeline import Pipeline, RunMode, WriteMode
from pgsluice.replicator.pipelines.steps.step import PythonStep, SqlStep
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.run_schedule import OverlapPolicy, RunSchedule

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
    steps:
      - {python: "marts.ratings:clean", with: {round: 2, unit: "2", names: [a, true]}}
      - sql: SELECT id FROM rows
      - python: marts:last
    max-dead-letters: 5
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
        steps=(
            PythonStep("marts.ratings", "clean", {"round": 2, "unit": "2", "names": ["a", True]}),
            SqlStep("SELECT id FROM rows"),
            PythonStep("marts", "last"),
        ),
        max_dead_letters=5,
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("key: []", "key is missing"),
        ("mode: sometimes", "mode 'sometimes' is unknown"),
        ("mode: incremental", "incremental-key is missing"),
        ("incremental-key: at", "no meaning without 'mode: incremental'"),
        ("write: all", "write 'all' is unknown"),
        ("target: a.b.c", "is not a table"),
        ("group: No Group", "is not a valid name"),
        ("overlap: soon", "neither a duration nor a number"),
        ("query: ;", "query is empty"),
        ("deletes: none of them", "deletes"),
        ("nulls: maybe", "nulls 'maybe' is unknown"),
        ("batch-rows: 0", "not a whole number from 1 on"),
        ("statement-timeout: ages", "write it like 10m"),
        ("host: db", "unknown key 'host'"),
        ("schedule: '61 * * * *'", "is no cron text"),
        ("schedule: hourly", "has not the five fields of cron"),
        ("every: often", "write it like 15m"),
        ("every: 0s", "shorter than a second"),
        ("time-zone: Europe/Berlin", "no meaning without 'schedule' or 'every'"),
        ("{schedule: '* * * * *', every: 1h}", "schedule and every are both given"),
        ("{schedule: '* * * * *', time-zone: Mars/Base}", "time-zone 'Mars/Base' is not known"),
        ("{every: 1h, overlap-policy: kill}", "overlap-policy 'kill' is unknown"),
        ("steps: [{python: 'import os'}]", "step 1: 'import os' is not a function"),
        ("steps: [{python: 'a:b.c'}]", "step 1: 'a:b.c' is not a function"),
        ("steps: [{python: 'a:b', with: 3}]", "with is not a mapping"),
        ("steps: [{code: 'a:b'}]", "unknown key 'code'"),
        ("steps: [{sql: SELECT, python: 'a:b'}]", "python has no effect together with sql"),
        ("steps: [{sql: }]", "sql is missing"),
        ("steps: marts:clean", "steps is not a list"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    lines = line.strip("{}").split(", ") if line.startswith("{") else [line]
    key = line.partition(":")[0]
    kept = [each for each in MINIMAL.splitlines() if not each.strip().startswith(f"{key}:")]
    with pytest.raises(UsageError, match=r"pipelines\.yaml:\d+: .*" + said):
        read(tmp_path, "\n".join([*kept, *(f"    {each}" for each in lines), ""]))


def test_a_schedule_is_read_with_its_time_zone(tmp_path: Path) -> None:
    scheduled = MINIMAL + "    schedule: '*/15  * * * *'\n    time-zone: Europe/Berlin\n    overlap-policy: queue\n"
    expected = RunSchedule(cron="*/15 * * * *", time_zone="Europe/Berlin", overlap=OverlapPolicy.QUEUE)
    assert read(tmp_path, scheduled)["ratings"].schedule == expected
    assert read(tmp_path, MINIMAL + "    every: 1h30m\n")["ratings"].schedule == RunSchedule(every_s=5400.0)


def test_a_column_may_say_that_a_row_is_deleted(tmp_path: Path) -> None:
    deleting = MINIMAL + "    deletes: {column: gone_at}\n"
    assert read(tmp_path, deleting)["ratings"].deleted_column == "gone_at"
    with pytest.raises(UsageError, match="deletes has no meaning with 'write: append'"):
        read(tmp_path, deleting + "    write: append\n")


def test_a_run_that_replaces_all_rows_reads_all_rows(tmp_path: Path) -> None:
    replacing = MINIMAL + "    write: replace\n"
    assert read(tmp_path, replacing)["ratings"].write is WriteMode.REPLACE
    with pytest.raises(UsageError, match="'write: replace' wants 'mode: full'"):
        read(tmp_path, replacing + "    mode: incremental\n    incremental-key: at\n")


def test_two_pipelines_do_not_share_a_group(tmp_path: Path) -> None:
    second = MINIMAL.replace("\npipelines:\n", "").replace("  ratings:", "  others:\n    group: ratings")
    with pytest.raises(UsageError, match="the group is that of pipeline 'ratings'"):
        read(tmp_path, MINIMAL + second)


def test_one_pipeline_is_read_without_its_name() -> None:
    described = MINIMAL.partition("ratings:\n")[2]
    pipeline, content = parse_pipeline("the body", described, "ratings")
    assert (pipeline.name, pipeline.schema, pipeline.table) == ("ratings", "analytics", "ratings")
    assert content == {"query": "SELECT id FROM film;", "target": "analytics.ratings", "key": ["id"]}
