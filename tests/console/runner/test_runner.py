"""Processes of groups that have a document: started, found again, started again, and left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.runner.machine import Machine
from tests.replicated_group import Group
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import wait_until


@pytest.fixture
def machine(replication: Group, nats_server: NatsServer, tmp_path: Path) -> Iterator[Machine]:
    with Machine(nats_server, replication.source, tmp_path) as running:
        yield running


def order(machine: Machine, verb: str, group: str) -> None:
    """A command, as a person gives it."""
    with PgsluiceProcess(verb, "--group", group, "--nats-url", machine.server.nats_url, "--source") as command:
        assert command.wait() == 0, command.log()


def test_a_process_is_started_kept_running_and_found_by_the_next_server(machine: Machine, replication: Group) -> None:
    group = replication.name
    machine.apply(machine.document(group))
    [first] = machine.wait_for_processes(group, 1)
    machine.server.kill()
    assert first.is_running()
    machine.server.start()
    replication.source.execute("INSERT INTO t VALUES (1, 'v')")
    wait_until(
        lambda: replication.with_broker(lambda stream, _: stream.state()) and replication.stream_state().messages, deadline_s=60
    )
    machine.apply(machine.document("other", nats_url=None))  # the server's is meant
    [beside] = machine.wait_for_processes("other", 1)
    beside.kill()
    machine.wait_for_processes("other", 1, other_than=beside.pid)  # by then a group without a process would have one again
    assert machine.processes(group) == [first]
    first.kill()
    [second] = machine.wait_for_processes(group, 1, other_than=first.pid)
    machine.apply(machine.document(group, check_interval="30s"))
    [third] = machine.wait_for_processes(group, 1, other_than=second.pid)
    assert "check-interval" in (machine.groups_directory / group / "replicator.yaml").read_text()
    order(machine, "stop", group)
    machine.wait_for_processes(group, 0)
    machine.server.kill()
    machine.server.start()
    order(machine, "start", group)
    machine.wait_for_processes(group, 1, other_than=third.pid)
    assert replication.audit().changes == 1


def test_what_needs_a_person_is_not_started_again(machine: Machine, replication: Group) -> None:
    group = replication.name
    machine.apply(machine.document(group, publication="nobody_made_it"))
    log = machine.groups_directory / group / "replicator.log"
    wait_until(lambda: log.exists() and "nobody_made_it" in log.read_text(), deadline_s=60, what="the refusal")
    machine.wait_for_processes(group, 0)
    machine.server.kill()
    machine.server.start()
    machine.apply(machine.document("other"))
    machine.wait_for_processes("other", 1)
    assert machine.processes(group) == []
    assert log.read_text().count("pgsluice: ") == 1
    machine.apply(machine.document(group))
    machine.wait_for_processes(group, 1)
