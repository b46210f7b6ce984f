"""A pipeline that is a document has a worker, with the sink's configuration and not a word of the document's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.console.pipelines.administrator import GOOD, Administrator
from tests.console.server.served import Served
from tests.servers import Database, NatsServer
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


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A runner starts workers of every document that it finds, so none of other tests may be there."""
    with NatsServer() as server:
        yield server


@pytest.mark.timeout(300)
def test_rows_come_to_the_sink_of_a_document_and_a_hostile_one_has_no_worker(
    own_nats: NatsServer, source_database: Database, target_database: Database, group: str, tmp_path: Path
) -> None:
    source_database.execute(TABLE)
    administrator, target = Administrator(own_nats, source_database, tmp_path), target_database.settings
    sink = {"host": target.host, "port": target.port, "dbname": target.dbname, "user": target.user}
    keys = {f"target-{name}": value for name, value in sink.items()}
    administrator.write("warehouse.yaml", keys | {"spark": {"master": "local[1]"}, "target-password": "${TARGET_PASSWORD:-none}"})
    administrator.put(f"{group}-bad", {**GOOD, "target": "public.users"})
    with Served(own_nats.url, tmp_path, "--run", pipelines_places=administrator.places) as served:
        try:
            with served.client() as client:
                assert client.put(f"/pipelines/{group}", json={"yaml": yaml.safe_dump(dict(GOOD))}).status_code == 201
            code, said = administrator.run(group, "--wait")
            assert (code, "every worker has applied them" in said) == (0, True), said
            assert target_database.execute("SELECT count(*) FROM analytics.t") == [(9,)]
            folders = {path.name for path in (served.state_directory / "groups").iterdir()}
            assert (group in folders, f"{group}-bad" in folders) == (True, False)
            [worker] = workers(administrator)
            assert worker.cmdline()[worker.cmdline().index("--group") + 1] == group
        finally:
            end(administrator)


def test_places_that_break_meanwhile_hinder_no_group(own_nats: NatsServer, source_database: Database, tmp_path: Path) -> None:
    administrator = Administrator(own_nats, source_database, tmp_path)
    with Served(own_nats.url, tmp_path, "--run", pipelines_places=administrator.places) as served:
        Path(administrator.places).write_text("sources: [")
        wait_until(lambda: "workers of pipelines are not looked after" in served.process.log(), what="the runner's warning")
        with served.client() as client:
            refused = client.get("/pipelines")
            assert (refused.status_code, "not valid YAML" in refused.text) == (422, True)
            assert client.get("/groups").status_code == 200


def test_a_server_does_not_start_with_places_that_cannot_be_used(nats_server: NatsServer, tmp_path: Path) -> None:
    places = tmp_path / "places.yaml"
    places.write_text("sinks: {lake: {kind: oracle, config: x}}\n")
    served = Served(nats_server.url, tmp_path, pipelines_places=str(places))
    try:
        served.process.start()
        assert served.process.wait() == 2
        assert "kind 'oracle' is no sink" in served.process.log()
    finally:
        served.process.close()
