"""What became of a pipeline's runs: listed for people, and as metrics of the worker that applied them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.test_replacing_pipeline import PIPELINE
from tests.end_to_end.test_sql_pipelines import run
from tests.endpoints import Scrape, address_of, scraped
from tests.servers import Database, NatsServer, PgsluiceProcess


def history(keys: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(keys, "runs", "list", "numbers", "--json").splitlines()]


def of_runs(scrape: Scrape) -> set[str]:
    return {name for name in scrape if name.startswith("pgsluice_run_")}


@pytest.mark.timeout(300)
def test_rows_that_were_the_same_and_seconds_of_each_stage_are_told(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    source_database.execute(
        "CREATE TABLE numbers (id int PRIMARY KEY, run int); INSERT INTO numbers SELECT n, 1 FROM generate_series(1, 10) n"
    )
    file = tmp_path / "pipelines.yaml"
    file.write_text(PIPELINE.replace("NAME-OF-GROUP", group))
    keys = configuration(group, source_database, target_database, nats_server, **{"pipelines-config": str(file)})
    with PgsluiceProcess("worker", "postgres", config=keys | {"metrics-listen": "127.0.0.1:0"}) as worker:
        address = address_of(worker)
        assert of_runs(scraped(address)) == set()
        run(keys, "run", "numbers", "--wait")
        source_database.execute("UPDATE numbers SET run = 2 WHERE id < 4")
        run(keys, "run", "numbers", "--wait")
        newest, first = history(keys)
        shown = scraped(address)
    counts = ("rows_read", "dead", "rows_applied", "unchanged")
    assert [[each[name] for name in counts] for each in (newest, first)] == [[10, 0, 3, 7], [10, 0, 10, 0]]
    for each in (newest, first):
        assert each["state"] == "applied"
        assert min(each["plan_s"], each["read_s"]) > 0.0
        assert 0.0 <= each["apply_s"] < 60.0
    assert "UNCHANGED" in run(keys, "runs", "list", "numbers")
    assert shown["pgsluice_run_rows_total"] == {("read", "numbers"): 20, ("dead", "numbers"): 0, ("deleted", "numbers"): 0}
    assert shown["pgsluice_run_seconds"] == {
        ("numbers", stage): pytest.approx(newest[f"{stage}_s"], abs=0.001) for stage in ("plan", "read", "apply")
    }
    assert shown["pgsluice_run_state"]["numbers", "finished"] == 1
    assert "pgsluice_run_horizon_seconds" not in shown
