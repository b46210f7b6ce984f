"""A server that is killed again and again while it starts, pauses, stops and changes groups: then each is as it should be."""

from __future__ import annotations

import functools
import os
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.console.runner.machine import Machine
from tests.replicated_group import Group
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until

KILLS = int(os.environ.get("RUNNER_KILLS", "50"))
GROUPS, TARGETS = 5, 2
"""A worker is a JVM, so only the first groups have one."""
START_S, OBEY_S = 300, 180

Unit = tuple[str, str]
"""A group, and its unit."""


def request(machine: Machine, verb: str, path: str, body: Mapping[str, object]) -> None:
    """Until a server took it: it may be killed before it answers."""

    def answered() -> bool:
        try:
            with machine.server.client() as client:
                answer = client.request(verb, path, json=body, headers={"If-Match": "*"})
        except httpx.TransportError:
            return False
        assert answer.status_code < 500, answer.text
        return answer.status_code < 300 or answer.status_code == 404

    wait_until(answered, deadline_s=60, what=f"an answer to {verb} {path}")


def has_changes(group: Group, count: int) -> bool:
    return group.audit().changes == count


@pytest.fixture
def targets(postgres: PostgresServer) -> Iterator[list[Database]]:
    with ExitStack() as made:
        databases = [postgres.create_database(f"target_{uuid.uuid4().hex[:12]}") for _ in range(TARGETS)]
        for database in databases:
            made.callback(database.drop)
        yield databases


class RunGroups:
    """What is wanted of each unit of some groups, and how they are. The first groups have a worker with a target of its own."""

    def __init__(self, machine: Machine, name: str, targets: list[Database]) -> None:
        self._machine = machine
        self.names = [f"{name}-{number}" for number in range(GROUPS)]
        self.targets = dict(zip(self.names, targets, strict=False))
        self.wanted: dict[Unit, str] = {}
        for group in self.names:
            self.wanted[group, "replicator"] = "running"
            if group in self.targets:
                self.wanted[group, "worker.postgres"] = "running"

    def document(self, group: str, **options: str) -> str:
        target = self.targets.get(group)
        if target is None:
            return self._machine.document(group, **options)
        keys = {f"target_{key}": getattr(target.settings, key) for key in ("host", "port", "dbname", "user")}
        spark = {"master": "local[1]", "memory": "512m"}
        password = "${SOURCE_PASSWORD}"  # of the same server
        return self._machine.document(group, workers=["postgres"], target_password=password, spark=spark, **keys, **options)

    def want(self, unit: Unit, state: str) -> None:
        group, name = unit
        if not (state == "paused" and self.wanted[unit] == "stopped"):  # a pause does not lift a stop
            self.wanted[unit] = state
        request(self._machine, "PUT", f"/groups/{group}/desired", {"state": state, "units": [name]})

    def states(self) -> dict[Unit, str]:
        """None of a group of which nothing is known yet."""
        found = {}
        with self._machine.server.client() as client:
            for group in self.names:
                answer = client.get(f"/groups/{group}/units")
                for each in answer.json()["units"] if answer.status_code == 200 else []:
                    found[group, each["state"]["unit"]] = each["state"]["state"]
        return found

    def wait_as_wanted(self, deadline_s: float) -> None:
        wait_until(
            lambda: self.states() == self.wanted, deadline_s=deadline_s, what=lambda: f"{self.wanted}, seen {self.states()}"
        )
        for group in self.names:
            processes = sum(state != "stopped" for (other, _), state in self.wanted.items() if other == group)
            self._machine.wait_for_processes(group, processes)


def rows_of(database: Database) -> list[tuple[object, ...]]:
    return database.execute("SELECT id, v FROM t ORDER BY id")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_unit_is_as_desired_and_the_data_are_equal_after_kills_at_random_moments(
    replication: Group, nats_server: NatsServer, targets: list[Database], tmp_path: Path
) -> None:
    seed = int(os.environ.get("KILL_SEED", "0")) or random.randrange(1 << 31)
    print(f"KILL_SEED={seed}")
    chance = random.Random(seed)
    for target in targets:
        target.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    with Machine(nats_server, replication.source, tmp_path) as machine:
        groups = RunGroups(machine, replication.name, targets)
        machine.apply(*(groups.document(group) for group in groups.names))
        groups.wait_as_wanted(START_S)  # so that each has its slot
        row = 0
        for _ in range(KILLS):
            match chance.randrange(3):
                case 0:
                    groups.want(chance.choice(sorted(groups.wanted)), chance.choice(["running", "paused", "stopped"]))
                case 1:
                    group = chance.choice(groups.names)
                    document = groups.document(group, check_interval=f"{chance.randrange(10, 99)}s")
                    request(machine, "PUT", f"/groups/{group}/document", {"yaml": document})
                case _:
                    row += 1
                    replication.source.execute(f"INSERT INTO t VALUES ({row}, 'v')")
            time.sleep(chance.uniform(0, 0.8))  # the moment of a kill is random, and nothing is waited for
            machine.server.kill()
            machine.server.start()
        groups.wait_as_wanted(OBEY_S)
        for unit in groups.wanted:
            groups.want(unit, "running")
        groups.wait_as_wanted(START_S)
        for group in groups.names:
            holds_all = functools.partial(has_changes, Group(group, replication.source, replication.nats), row)
            wait_until(holds_all, deadline_s=60, what=f"{row} rows of {group}")
        for group, target in groups.targets.items():
            is_equal = functools.partial(lambda database: rows_of(database) == rows_of(replication.source), target)
            wait_until(is_equal, deadline_s=60, what=f"the same rows at the target of {group}")
