"""``pgsluice server --run`` executes pipelines that are documents: by their schedules, and when people ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.console.pipelines.administrator import GOOD, Administrator
from tests.console.server.served import Served
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

TABLE = "CREATE SCHEMA shop; CREATE TABLE shop.t (id bigint PRIMARY KEY, v text); INSERT INTO shop.t VALUES (1, 'v')"


def finished(client: httpx.Client, group: str) -> int:
    runs = client.get(f"/pipelines/{group}/runs").json()["runs"]
    return sum(run["state"] == "finished" for run in runs)


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A server that runs looks after every document that it finds."""
    with NatsServer() as server:
        yield server


def test_a_server_that_runs_executes_documents(
    own_nats: NatsServer, source_database: Database, tmp_path: Path, group: str
) -> None:
    source_database.execute(TABLE)
    administrator = Administrator(own_nats, source_database, tmp_path)
    with Served(own_nats.url, tmp_path, "--run", pipelines_places=administrator.places) as served, served.client() as client:
        document = {**GOOD, "every": "1h"}
        assert client.put(f"/pipelines/{group}", json={"yaml": yaml.safe_dump(document)}).status_code == 201
        wait_until(lambda: finished(client, group) == 1, deadline_s=60, what="the first tick's run", interval_s=0.4)
        request = client.post(f"/pipelines/{group}/runs", json={"full": True})
        wait_until(lambda: finished(client, group) == 2, deadline_s=60, what="the run that was asked for", interval_s=0.4)
        path = request.headers["location"].removeprefix("/api/v1")
        wait_until(lambda: client.get(path).json()["state"] == "done", deadline_s=30, what="the request", interval_s=0.4)
        assert client.get(path).json()["run"] == 2
        shown, listed = client.get(f"/pipelines/{group}").json()["pipeline"], client.get(f"/pipelines/{group}/runs").json()
        assert shown["next_tick"] == listed["ticks"]["next"] != ""
        assert shown["schedule"] == listed["ticks"]["schedule"] == "every 3600 s"
        assert [(run["rows_read"], run["dead"], run["rows_applied"], run["apply_s"]) for run in listed["runs"]] == [
            (1, 0, None, None)
        ] * 2
    assert (served.state_directory / "runs" / f"{group}.log").exists()
