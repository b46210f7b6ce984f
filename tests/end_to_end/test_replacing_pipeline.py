"""Runs that replace all rows, while their runner and the worker are killed and somebody reads the target every 20 ms."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.supervised import Supervised
from tests.end_to_end.test_sql_pipelines import RUN_DEADLINE_S
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

RUNS = 6
MOST_ROWS = 30_000
READ_INTERVAL_S = 0.02
KILLED_WITHIN_S = 2.0
PIPELINE = """
pipelines:
  numbers:
    group: NAME-OF-GROUP
    query: SELECT id, run, repeat('x', 100) AS filler FROM numbers
    target: public.copied
    key: [id]
    write: replace
    batch-rows: 4000
    tasks: 2
"""

Seen = tuple[int, int, int]
"""Rows, and the lowest and the highest run among them."""


def fill(source: Database, number: int, rows: int) -> None:
    source.execute(f"TRUNCATE numbers; INSERT INTO numbers SELECT n * {number}, {number} FROM generate_series(1, {rows}) n")


@contextmanager
def reading(target: Database, seen: list[Seen]) -> Iterator[None]:
    """Reads until the end of the block."""
    is_over = threading.Event()

    def read() -> None:
        with target.connect() as connection:
            while not is_over.wait(READ_INTERVAL_S):
                if connection.execute("SELECT to_regclass('public.copied') IS NOT NULL").fetchone() == (True,):
                    row = connection.execute("SELECT count(*), min(run), max(run) FROM public.copied").fetchone()
                    assert row is not None
                    seen.append(row)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_whoever_reads_finds_all_rows_of_one_run_whatever_is_killed(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    choose = random.Random(18)
    source_database.execute("CREATE TABLE numbers (id int PRIMARY KEY, run int NOT NULL)")
    file = tmp_path / "pipelines.yaml"
    file.write_text(PIPELINE.replace("NAME-OF-GROUP", group))
    keys = configuration(group, source_database, target_database, nats_server, **{"pipelines-config": str(file)})
    counts = {number: choose.randint(1, MOST_ROWS) for number in range(1, RUNS + 1)}
    seen: list[Seen] = []
    kills = 0
    with reading(target_database, seen), Supervised(PgsluiceProcess("worker", "postgres", config=keys)) as worker:
        for number, rows in counts.items():
            fill(source_database, number, rows)
            with PgsluiceProcess("run", "numbers", config=keys) as begun:
                threading.Event().wait(choose.uniform(0.4, KILLED_WITHIN_S))
                kills += begun.is_running
                begun.kill()
            whole = (rows, number, number)
            with PgsluiceProcess("run", "numbers", config=keys) as again:
                threading.Event().wait(choose.uniform(0.0, KILLED_WITHIN_S))
                if seen[-1:] != [whole] and worker.process.is_running:
                    worker.process.kill()
                    kills += 1
                assert again.wait(RUN_DEADLINE_S) == 0, again.log()
            wait_until(lambda: seen[-1:] == [whole], deadline_s=RUN_DEADLINE_S, what="the newest run", interval_s=0.1)  # noqa: B023
        assert worker.stopped_by is None
    print(f"{kills} kills, {len(seen)} reads, {len(set(seen))} states seen")
    assert kills > RUNS
    assert set(seen) <= {(rows, number, number) for number, rows in counts.items()} | {(0, None, None)}
