"""``pgsluice run`` and a Postgres worker: after each run the target is what the query gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.servers import Database, NatsServer, PgsluiceProcess

FILMS = 3000
RUN_DEADLINE_S = 120.0
QUERY = """SELECT f.id, f.title, round(avg(r.stars), 2) AS stars, max(r.updated_at) AS updated_at
          FROM film f JOIN rating r ON r.film_id = f.id GROUP BY f.id, f.title"""
PIPELINES = f"""
pipelines:
  film_ratings:
    group: NAME-OF-GROUP
    query: |
        {QUERY};
    target: public.film_ratings
    key: [id]
    mode: incremental
    incremental-key: updated_at
    batch-rows: 1000
    tasks: 2
"""


def create_films(source: Database) -> None:
    source.execute(
        "CREATE TABLE film (id int PRIMARY KEY, title text NOT NULL);"
        "CREATE TABLE rating (film_id int, stars int, updated_at timestamptz DEFAULT now());"
        f"INSERT INTO film SELECT n, 'film ' || n FROM generate_series(1, {FILMS}) n;"
        f"INSERT INTO rating SELECT n, n % 5 + 1, now() - interval '1 hour' FROM generate_series(1, {FILMS}) n"
    )


@pytest.fixture
def keys(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> dict[str, Any]:
    """The configuration of a group whose pipeline reads films, which there are."""
    create_films(source_database)
    file = tmp_path / "pipelines.yaml"
    file.write_text(PIPELINES.replace("NAME-OF-GROUP", group))
    return configuration(group, source_database, target_database, nats_server, **{"pipelines-config": str(file)})


def run(keys: dict[str, Any], *arguments: str) -> str:
    with PgsluiceProcess(*arguments, config=keys) as process:
        assert process.wait(RUN_DEADLINE_S) == 0, process.log()
        return process.stdout()


def assert_same(source: Database, target: Database) -> None:
    columns = "id, title, stars::numeric, updated_at"
    expected = source.execute(f"SELECT {columns} FROM ({QUERY}) AS q ORDER BY id")
    assert target.execute(f"SELECT {columns} FROM film_ratings ORDER BY id") == expected


@pytest.mark.timeout(300)
def test_runs_fill_a_table_with_a_key_and_keep_it_as_the_query_is(
    keys: dict[str, Any], source_database: Database, target_database: Database, group: str
) -> None:
    planned = run(keys, "run", "film_ratings", "--dry-run")
    assert f"full, would read {FILMS} rows in 3 batches" in planned
    # Two runs before any worker: the newer rows of the second one come after those of the first, whatever tasks do.
    run(keys, "run", "film_ratings")
    source_database.execute("INSERT INTO rating SELECT n, 1, now() FROM generate_series(1, 500) n")
    run(keys, "run", "film_ratings")
    with PgsluiceProcess("worker", "postgres", config=keys) as worker:
        try:
            assert "every worker has applied" in run(keys, "run", "film_ratings", "--wait")
            assert_same(source_database, target_database)
            source_database.execute("INSERT INTO rating SELECT n, 5, now() FROM generate_series(1, 1500) n")
            run(keys, "run", "film_ratings", "--wait")
            assert_same(source_database, target_database)
        finally:
            print(worker.log()[-4000:])
    listed = [json.loads(line) for line in run(keys, "runs", "list", "film_ratings", "--json").splitlines()]
    assert [(each["run"], each["state"], each["kind"]) for each in listed] == [
        (4, "applied", "incremental"),
        (3, "applied", "incremental"),
        (2, "applied", "incremental"),
        (1, "applied", "full"),
    ]
    newest, again, *overtaken = [(each["rows_read"], each["rows_applied"], each["unchanged"]) for each in listed]
    assert newest == (1500, 1500, 0)
    assert again == (listed[1]["rows"], 0, listed[1]["rows"])  # rows of the last seconds are read again, and are the same
    assert overtaken == [(each["rows"], each["rows"], None) for each in listed[2:]]
    assert listed[0]["apply_s"] is not None
    primary_keys = "SELECT count(*) FROM pg_index WHERE indrelid = 'film_ratings'::regclass AND indisprimary"
    assert target_database.execute(primary_keys) == [(1,)]


def test_a_run_that_waits_for_a_worker_ends_when_the_worker_has_failed(
    keys: dict[str, Any], source_database: Database, target_database: Database, group: str
) -> None:
    target_database.execute("CREATE TABLE film_ratings (other int PRIMARY KEY)")
    with (
        PgsluiceProcess("worker", "postgres", config=keys) as worker,
        PgsluiceProcess("run", "film_ratings", "--wait", config=keys) as waiting,
    ):
        assert waiting.wait(RUN_DEADLINE_S) == 70, waiting.log()
        assert worker.wait(RUN_DEADLINE_S) == 70
        assert f"worker 'postgres' of group '{group}' has failed" in waiting.log()
        assert "has no column 'id'" in waiting.log()
        target_database.execute("DROP TABLE film_ratings")
        worker.start()
        run(keys, "run", "film_ratings", "--wait")
    assert_same(source_database, target_database)
