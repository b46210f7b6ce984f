"""A pipeline that is a document has a worker, with the sink's configuration and not a word of the document's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from pgsluice.console.program import run
from tests.console.pipelines.administrator import GOOD, Administrator
from tests.console.server.served import Served
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until

TABLE = """
    CREATE SCHEMA shop;
    CREATE TABLE shop.t (id bigint PRIMARY KEY, v text);
    INSERT INTO shop.t SELECT n, 'v' || n FROM generate_series(1, 9) n
"""


def workers(administrator: Administrator) -> list[psutil.Process]:
    """Those that read the administrator's sink."""
    path = str(administrator.directory / "warehouse.yaml")
    found = []
    for process in psutil.process_iter():
        try:
            if "worker" in process.cmdline() and path in process.cmdline():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def end(administrator: Administrator) -> None:
    """They outlive their server. What ends by itself meanwhile is no error."""
    found: list[psutil.Process] = []
    for worker in workers(administrator):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [*worker.children(recursive=True), worker]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=10)


@dataclass(frozen=True, slots=True)
class RunningPlace:
    """An administrator's server that runs workers, and the database that its sink fills."""

    administrator: Administrator
    served: Served
    target: Database


@pytest.fixture(scope="module")
def place(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlace]:
    """With a NATS of its own: a runner starts workers of every document that it finds, so none of other tests may be there."""
    source, target = (postgres.create_database(f"{role}_of_pipeline_workers") for role in ("source", "target"))
    source.execute(TABLE)
    directory = tmp_path_factory.mktemp("workers")
    with NatsServer() as nats:
        administrator = Administrator(nats, source, directory)
        keys = {f"target-{key}": getattr(target.settings, key) for key in ("host", "port", "dbname", "user")}
        more = {"spark": {"master": "local[1]"}, "target-password": "${TARGET_PASSWORD:-none}"}
        administrator.write("warehouse.yaml", keys | more)
        with Served(nats.url, directory, "--run", pipelines_places=administrator.places) as served:
            try:
                yield RunningPlace(administrator, served, target)
            finally:
                end(administrator)
    source.drop()
    target.drop()


@pytest.mark.timeout(300)
def test_rows_come_to_the_sink_of_a_document_and_a_hostile_one_has_no_worker(place: RunningPlace, group: str) -> None:
    administrator, served = place.administrator, place.served
    administrator.put(f"{group}-bad", {**GOOD, "target": "public.users"})
    with served.client() as client:
        assert client.put(f"/pipelines/{group}", json={"yaml": yaml.safe_dump(dict(GOOD))}).status_code == 201
    code, said = administrator.run(group, "--wait")
    assert (code, "every worker has applied them" in said) == (0, True), said
    assert place.target.execute("SELECT count(*) FROM analytics.t") == [(9,)]
    folders = {path.name for path in (served.state_directory / "groups").iterdir()}
    assert (group in folders, f"{group}-bad" in folders) == (True, False)
    [worker] = workers(administrator)
    assert worker.cmdline()[worker.cmdline().index("--group") + 1] == group


def test_places_that_break_meanwhile_hinder_no_group(place: RunningPlace) -> None:
    places = Path(place.administrator.places)
    before = places.read_text()
    places.write_text("sources: [")
    try:
        log = place.served.process.log
        wait_until(lambda: "workers of pipelines are not looked after" in log(), what="the runner's warning")
        with place.served.client() as client:
            refused = client.get("/pipelines")
            assert (refused.status_code, "not valid YAML" in refused.text) == (422, True)
            assert client.get("/groups").status_code == 200
    finally:
        places.write_text(before)


def test_a_server_does_not_start_with_places_that_cannot_be_used(
    nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = tmp_path / "places.yaml"
    places.write_text("sinks: {lake: {kind: oracle, config: x}}\n")
    assert run(["server", "--nats-url", nats_server.url, "--pipelines-places", str(places)]) == 2
    assert "kind 'oracle' is no sink" in capsys.readouterr().err
