"""The roles that the container files make for a whole group are enough for it, and are not superusers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PostgresServer
from tests.servers.postgres_binaries import binaries

DOCKER = Path(__file__).resolve().parents[2] / "docker"
PASSWORD = "it's secret"
NATS_PASSWORD = "00042"
"""Which NATS takes for a number where it stands without quotes."""


@pytest.fixture
def servers() -> Iterator[list[PostgresServer]]:
    with ExitStack() as running:
        yield [running.enter_context(PostgresServer(password="superuser's")) for _ in range(2)]


@pytest.fixture
def nats(monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    """With the login of the container files."""
    script: str = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["nats"]["entrypoint"][-1]
    assignment, _, _ = script.partition(" exec ")
    told = subprocess.run(
        ["sh", "-c", f'cat() {{ echo {NATS_PASSWORD}; }}; {assignment}; echo "$NATS_PASSWORD"'.replace("$$", "$")],
        capture_output=True,
        text=True,
        check=True,
    )
    monkeypatch.setenv("NATS_PASSWORD", told.stdout.strip())
    with NatsServer(config=(DOCKER / "nats.conf").read_text()) as server:
        yield server


def test_the_roles_of_the_container_files_replicate_the_tables_of_the_container_files(
    servers: list[PostgresServer], nats: NatsServer, tmp_path: Path
) -> None:
    source, target = (server.create_database("shop") for server in servers)
    for database, name in ((source, "source"), (target, "target")):
        initialize(database, name, tmp_path)
        assert database.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'pgsluice'") == [(False,)]
    source.execute("INSERT INTO customers (name) VALUES ('Ada')")
    keys = configuration(source, target, nats)
    succeed(replicate(keys))
    source.execute("INSERT INTO orders (customer_id, total) VALUES (1, 2.5)")
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target.execute("SELECT name, total FROM customers c JOIN orders o ON o.customer_id = c.id") == [("Ada", 2.5)]


def initialize(database: Database, name: str, directory: Path) -> None:
    """As the image's entry point does, but for the place of the secret."""
    secret = directory / f"{name}-password"
    secret.write_text(PASSWORD + "\n")
    script = (DOCKER / f"{name}.sql").read_text()
    in_container = f"/run/secrets/{name}-password"
    assert in_container in script
    command = [str(binaries() / "psql"), "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "--dbname", database.server.dsn(database.dbname)]
    subprocess.run(command, input=script.replace(in_container, str(secret)), text=True, check=True)


def configuration(source: Database, target: Database, nats: NatsServer) -> dict[str, Any]:
    """What both services read and are told, but for where the servers are."""
    keys: dict[str, Any] = yaml.safe_load((DOCKER / "pgsluice.yaml").read_text())
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    for service, prefix, database in (("replicator", "", source), ("worker", "target-", target)):
        told = services[service]["environment"]
        variable = f"PGSLUICE_{prefix.upper().replace('-', '_')}"
        keys |= {prefix + key: told[variable + key.upper()] for key in ("user", "dbname")}
        keys |= {f"{prefix}host": database.server.host, f"{prefix}port": database.server.port, f"{prefix}password": PASSWORD}
        keys["nats-user"] = told["PGSLUICE_NATS_USER"]
    return keys | {"nats-password": NATS_PASSWORD, "nats-url": nats.url, "log-format": "text", "metrics-listen": "127.0.0.1:0"}
