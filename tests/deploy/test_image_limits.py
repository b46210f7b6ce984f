"""The program under the limits that a container of our image is given: its account, a read-only root, no capabilities."""

from __future__ import annotations

import re
import uuid

import pytest
import yaml

from tests.deploy.machine import Machine, needs_namespaces
from tests.end_to_end.group_under_test import configuration
from tests.servers import Database, NatsServer
from tests.servers.program import REPOSITORY

pytestmark = pytest.mark.deploy

DEADLINE_S = 180.0


def account() -> str:
    """The statement that makes it in the image."""
    (statement,) = re.findall(r"^RUN (useradd .*)$", (REPOSITORY / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    return str(statement)


def run_limited(keys: dict[str, object], *arguments: str) -> None:
    """``pgsluice <arguments>`` to its end, which must be 0."""
    program = ("pgsluice", *arguments, "--config", "/run/machine/pgsluice.yaml")
    machine = Machine("bash", "/opt/checkout/tests/deploy/container.sh", account(), *program)
    (machine.directory / "pgsluice.yaml").write_text(yaml.safe_dump(keys))
    with machine:
        assert machine.wait(DEADLINE_S) == 0, machine.log()


def test_both_roles_run_without_root_on_a_read_only_root(
    source_database: Database, target_database: Database, nats_server: NatsServer
) -> None:
    needs_namespaces()
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    keys = configuration(f"limited-{uuid.uuid4().hex[:8]}", source_database, target_database, nats_server)
    keys |= {"copy-and-stream": True, "log-format": "json"}
    run_limited(keys, "replicator", "--until-lsn", "current")
    source_database.execute("INSERT INTO t VALUES (2)")
    run_limited(keys, "replicator", "--until-lsn", "current")
    run_limited(keys, "worker", "postgres", "--until-sequence", "current")
    assert target_database.execute("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
