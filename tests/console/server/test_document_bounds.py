"""A document names only what the server's administrator allows, whether it was stored through the API or without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.server.served import Served, places_file
from tests.console.server.strangers import listening, write_document
from tests.servers import NatsServer
from tests.waiting import wait_until

MARKER = "m4rk3r-of-the-machine"


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, NatsServer]]:
    """A server with a NATS of its own, whose administrator named no places."""
    env = {"AWS_SECRET_ACCESS_KEY": MARKER, "GROUP_OWN_USER": "ada", "PGPASSWORD": MARKER}
    directory = tmp_path_factory.mktemp("bounded")
    (directory / ".pgpass").write_text(f"*:*:*:*:{MARKER}\n")
    (directory / ".pgpass").chmod(0o600)
    with NatsServer() as nats, Served(nats.url, directory, env=env | {"HOME": str(directory)}, pipelines_places="") as served:
        yield served, nats


def looked_at(served: Served, group: str) -> None:
    with served.client() as client:
        wait_until(lambda: (client.get(f"/groups/{group}").json().get("status") or {}).get("source_problem"), what="a look")


def test_a_document_takes_no_variable_of_the_server_to_a_host_of_its_writer(bounded: tuple[Served, NatsServer]) -> None:
    served, nats = bounded
    with listening() as stranger:
        to = {"host": "127.0.0.1", "port": str(stranger.port), "dbname": "d", "sslmode": "disable"}
        write_document(nats, "by-variable", "by-variable", user="${AWS_SECRET_ACCESS_KEY}", **to)
        token = str(served.state_directory / "token")
        write_document(nats, "by-file", "by-file", user="u", **to, **{"password-file": token})
        for group in ("by-variable", "by-file"):
            looked_at(served, group)
            with served.client() as client:
                checked = client.post(f"/groups/{group}/check")
                assert stranger.heard == []
                assert checked.status_code == 422
                assert client.get(f"/groups/{group}/document").json()["problem"]
    assert "by-variable' may not name the variable AWS_SECRET_ACCESS_KEY" in served.process.log()


def test_no_password_of_the_servers_user_goes_where_a_document_says(bounded: tuple[Served, NatsServer]) -> None:
    """libpq would take one from PGPASSWORD or ~/.pgpass, where it is asked for one."""
    served, nats = bounded
    with listening() as stranger:
        stranger.answer = b"R\x00\x00\x00\x08\x00\x00\x00\x03"  # a server's wish for the password as it is
        to = {"host": "127.0.0.1", "port": str(stranger.port), "dbname": "d", "sslmode": "disable"}
        write_document(nats, "own", "own", user="${GROUP_OWN_USER}", **to)
        wait_until(lambda: b"user\0ada\0" in b"".join(stranger.heard), what="a login")
        looked_at(served, "own")
        assert MARKER.encode() not in b"".join(stranger.heard)


@pytest.mark.parametrize(
    "named",
    [
        {"alert-command": ["/bin/sh", "-c", "true"]},
        {"workers": ["x=package.module:Class"]},
        {"spark": {"spark.driver.extraJavaOptions": "-version"}},
        {"spark": {"master": "spark://127.0.0.1:7077"}},
        {"spark": {"python": "/bin/sh"}},
        {"file-output-dir": "/etc"},
        {"rules-config": "/etc/passwd"},
        {"user": "${PGSLUICE_NATS_PASSWORD}"},
        {"user": "${GROUP_OTHER_PASSWORD}"},
        {"otlp-headers": {"${PGSLUICE_NATS_PASSWORD}": "${GROUP_PLAIN_TOKEN}"}},
    ],
    ids=str,
)
def test_without_places_a_document_names_no_program_no_file_and_no_variable_but_its_own(
    bounded: tuple[Served, NatsServer], named: dict[str, object]
) -> None:
    served, _ = bounded
    text = f"group: plain\n{next(iter(named))}: {next(iter(named.values()))}\n"
    with served.client() as client:
        for refused in (
            client.put("/groups/plain/document", json={"yaml": text}),
            client.post("/plan", json={"documents": [text]}),
            client.post("/apply", json={"documents": [text]}),
        ):
            assert (refused.status_code, "may not name" in refused.text) == (422, True), refused.text
        assert client.get("/groups/plain/document").status_code == 404


def test_an_administrators_places_allow_more(nats_server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("tables: {}\n")
    places = places_file(
        tmp_path,
        variables=["SHOP_*"],
        directories=["."],
        hosts=["*.example.com", "10.0.0.0/8"],
        sinks=["file", "shop.sinks:*"],
        **{"alert-commands": ["/bin/true"], "spark": ["spark.sql.*"]},
    )
    allowed = f"""
        group: within
        host: db.example.com
        target-host: 10.1.2.3
        user: ${{SHOP_USER}}
        rules-config: {tmp_path}/rules.yaml
        file-output-dir: {tmp_path}/lake
        workers: [lake=file, own=shop.sinks:Lines]
        alert-command: [/bin/true]
        spark: {{spark.sql.shuffle.partitions: 2, memory: 2g}}
    """
    with Served(nats_server.url, tmp_path, pipelines_places=places) as served, served.client() as client:
        written = client.put("/groups/within/document", json={"yaml": allowed})
        assert (written.status_code, written.json().get("problem")) == (201, ""), written.text
        for name, value in {
            "host": "db.example.org",
            "kafka-brokers": "10.0.0.1:9092,192.0.2.1:9092",
            "webhook-allow-hosts": "0.0.0.0/0",
            "rules-config": f"{tmp_path}/../rules.yaml",
            "workers": "[postgres]",
        }.items():
            refused = client.post("/plan", json={"documents": [f"group: within\n{name}: {value}\n"]})
            assert (refused.status_code, f"({name})" in refused.text) == (422, True), (name, refused.text)
