"""The units under a real systemd, installed as docs/how-to/systemd.md says."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.deploy.documented import blocks
from tests.deploy.machine import SystemdMachine, needs_namespaces, systemd_is_installed
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until

pytestmark = pytest.mark.deploy

PAGE = "how-to/systemd.md"
REPLICATOR, WORKER = "pgsluice-replicator@shop", "pgsluice-worker@shop"
START_DEADLINE_S, APPLY_DEADLINE_S = 60.0, 120.0
PASSWORD = "it's secret"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Database, Database]]:
    """Source and target, which want the password."""
    with PostgresServer(password=PASSWORD) as server:
        source, target = server.create_database("source"), server.create_database("target")
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield source, target


@pytest.fixture(scope="module")
def machine(servers: tuple[Database, Database], nats_server: NatsServer) -> Iterator[SystemdMachine]:
    """With both units enabled and started."""
    needs_namespaces()
    if not systemd_is_installed():
        pytest.skip("systemd is not installed here")
    with SystemdMachine() as machine:
        _, install, start = blocks(PAGE, "sh")
        machine.succeed("sh", "-eux", "-c", install)
        keep_logs(machine)
        configure(machine, documented_configuration() | places(*servers, nats_server))
        machine.succeed("sh", "-eux", "-c", start)
        yield machine


def documented_configuration() -> dict[str, Any]:
    (text,) = blocks(PAGE, "yaml")
    keys: dict[str, Any] = yaml.safe_load(text)
    return keys


def places(source: Database, target: Database, nats: NatsServer) -> dict[str, Any]:
    """Where the servers of the test are, and a group of its own, small."""
    keys: dict[str, Any] = {"group": f"systemd-{uuid.uuid4().hex[:8]}", "nats-url": nats.url}
    for prefix, database in (("", source), ("target-", target)):
        keys |= {prefix + name: getattr(database.settings, name) for name in ("host", "port", "dbname", "user")}
    return keys | {"spark": {"master": "local[1]", "memory": "512m"}}


def keep_logs(machine: SystemdMachine) -> None:
    """The machine has no journal."""
    drop_in = "[Service]\nStandardOutput=append:/run/machine/%p.log\nStandardError=inherit\n"
    write(machine, "/etc/systemd/system/pgsluice-.service.d/zz-log.conf", drop_in)
    machine.succeed("systemctl", "daemon-reload")


def configure(machine: SystemdMachine, keys: dict[str, Any]) -> None:
    write(machine, "/etc/pgsluice/shop.yaml", yaml.safe_dump(keys))
    for name in ("password", "target-password"):
        write(machine, f"/etc/pgsluice/shop.secrets/{name}", PASSWORD + "\n")


def write(machine: SystemdMachine, path: str, text: str) -> None:
    (machine.directory / "written").write_text(text)
    machine.succeed("install", "-D", "/run/machine/written", path)


def log(machine: SystemdMachine, unit: str) -> str:
    path = machine.directory / f"{unit.partition('@')[0]}.log"
    return path.read_text() if path.exists() else ""


def main_pid(machine: SystemdMachine, unit: str) -> psutil.Process:
    """The unit's process as it is known outside."""
    inside = machine.shown(unit, "MainPID")["MainPID"]
    for process in machine.first_process.children(recursive=True):
        (numbers,) = re.findall(r"^NSpid:\s(.*)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        if numbers.split()[-1] == inside:
            return process
    raise AssertionError(f"{unit} has no process {inside}")


def insert(source: Database, target: Database, number: int) -> None:
    """And waits until the row is in the target."""
    source.execute(f"INSERT INTO t VALUES ({number})")

    def is_there() -> bool:
        return target.execute("SELECT to_regclass('t') IS NOT NULL") == [(True,)] and bool(
            target.execute(f"SELECT FROM t WHERE id = {number}")
        )

    wait_until(is_there, deadline_s=APPLY_DEADLINE_S, what=f"row {number} in the target")


def test_units_replicate_are_started_again_after_a_kill_and_stop_with_0(
    machine: SystemdMachine, servers: tuple[Database, Database]
) -> None:
    try:
        wait_until(lambda: "replicating " in log(machine, REPLICATOR), deadline_s=START_DEADLINE_S, what="the stream")
        insert(*servers, 1)
        machine.succeed("systemctl", "kill", "--kill-whom=main", "--signal=KILL", WORKER)
        insert(*servers, 2)
        assert machine.shown(WORKER, "NRestarts") == {"NRestarts": "1"}
        machine.succeed("systemctl", "reload", REPLICATOR)
        wait_until(lambda: "the configuration was read again" in log(machine, REPLICATOR), what="the configuration")
        machine.succeed("systemctl", "stop", WORKER, REPLICATOR)
    finally:
        print(log(machine, REPLICATOR)[-4000:], log(machine, WORKER)[-4000:], sep="\n")
    for unit in (WORKER, REPLICATOR):
        shown = machine.shown(unit, "ActiveState", "Result", "ExecMainStatus", "ExecMainCode")
        assert shown == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0", "ExecMainCode": "1"}


def test_a_running_unit_can_do_nothing_that_it_does_not_need(machine: SystemdMachine, servers: tuple[Database, Database]) -> None:
    machine.succeed("systemctl", "start", REPLICATOR)
    try:
        process = main_pid(machine, REPLICATOR)
        status = dict(re.findall(r"^(\w+):\t(.*)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE))
        mounts = [line.split() for line in Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()]
        assert status["Uid"].split()[0] != "0"
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert "ro" in next(fields[5] for fields in mounts if fields[4] == "/").split(",")
        assert {"/tmp", "/home", "/root"} <= {fields[4] for fields in mounts}
    finally:
        machine.succeed("systemctl", "stop", REPLICATOR)


def test_a_unit_that_needs_a_person_is_not_started_again(machine: SystemdMachine) -> None:
    write(machine, "/etc/pgsluice/wrong.yaml", "group: Not a name\n")
    write(machine, "/etc/pgsluice/wrong.secrets/password", PASSWORD)
    unit = "pgsluice-replicator@wrong"
    machine.run("systemctl", "start", unit)
    wait_until(lambda: machine.shown(unit, "ActiveState")["ActiveState"] == "failed", what="the end of the unit")
    shown = machine.shown(unit, "ExecMainStatus", "NRestarts", "Result")
    assert shown == {"ExecMainStatus": "2", "NRestarts": "0", "Result": "exit-code"}
