"""``pgsluice run --reconcile`` beside a Postgres worker: what the query gives no longer goes, whenever the runner is killed."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.supervised import Supervised
from tests.end_to_end.test_sql_pipelines import run
from tests.servers import Database, NatsServer, PgsluiceProcess

ROWS = 5000
KILLS = 5
PIPELINE = """
pipelines:
  items:
    group: NAME-OF-GROUP
    query: SELECT id, place, v, updated_at FROM items
    target: public.copied
    key: [place, id]
    mode: incremental
    incremental-key: updated_at
"""


def rows(database: Database, table: str) -> list[tuple[object, ...]]:
    return database.execute(f"SELECT id, place, v FROM {table} ORDER BY id, place")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_target_is_what_the_query_gives_whenever_the_runner_is_killed(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    choose = random.Random(4)
    source_database.execute(
        "CREATE TABLE items (id int, place text, v text, updated_at timestamptz DEFAULT now(), PRIMARY KEY (id, place));"
        f"INSERT INTO items SELECT n, 'p' || n % 7, 'v', now() - interval '1 hour' FROM generate_series(1, {ROWS}) n"
    )
    file = tmp_path / "pipelines.yaml"
    file.write_text(PIPELINE.replace("NAME-OF-GROUP", group))
    keys = configuration(group, source_database, target_database, nats_server, **{"pipelines-config": str(file)})
    with Supervised(PgsluiceProcess("worker", "postgres", config=keys)) as worker:
        run(keys, "run", "items", "--wait")
        for number in range(1, KILLS + 1):
            source_database.execute(
                f"DELETE FROM items WHERE id % 100 = {number};"
                f"INSERT INTO items VALUES ({number}, 'back', 'b', now()), ({ROWS + number}, 'new', 'n', now());"
                f"UPDATE items SET v = 'u{number}', updated_at = now() WHERE id = {200 + 10 * number}"
            )
            with PgsluiceProcess("run", "items", "--reconcile", config=keys) as begun:
                threading.Event().wait(choose.uniform(0.5, 4.0))
                begun.kill()
            run(keys, "run", "items", "--reconcile", "--wait")
            assert rows(target_database, "copied") == rows(source_database, "items")
        assert worker.stopped_by is None
    assert "reconcile" in run(keys, "runs")
