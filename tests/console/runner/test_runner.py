"""Processes of groups that have a document: started, found again, started again, and left alone."""

from __future__ import annotations

from pathlib import Path

from pgsluice.console.program import run
from pgsluice.console.runner.group_units import folder_of
from pgsluice.console.runner.unit_place import UnitPlace
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT
from tests.console.runner.machine import Machine
from tests.replicated_group import Group
from tests.servers import NatsServer
from tests.waiting import wait_until


def order(machine: Machine, verb: str, group: str) -> None:
    """A command, as a person gives it."""
    assert run([verb, "--group", group, "--nats-url", machine.server.nats_url, "--source"]) == 0


def test_a_process_is_kept_running_by_the_next_server_too_unless_it_needs_a_person(
    replication: Group, nats_server: NatsServer, tmp_path: Path
) -> None:
    group, refused = replication.name, f"{replication.name}-refused"
    with Machine(nats_server, replication.source, tmp_path) as machine:
        machine.apply(machine.document(group), machine.document(refused, publication="nobody_made_it"))
        [first] = machine.wait_for_processes(group, 1)
        refusal = machine.groups_directory / refused / "replicator.log"
        wait_until(lambda: refusal.exists() and "nobody_made_it" in refusal.read_text(), deadline_s=60, what="the refusal")
        place = UnitPlace(folder_of(machine.server.state_directory, refused), REPLICATOR_UNIT)
        wait_until(lambda: (last := place.last) and last.exit_code, what="its end, noted")
        assert machine.processes(refused) == []
        machine.server.kill()
        assert first.is_running()
        machine.server.start()
        replication.source.execute("INSERT INTO t VALUES (1, 'v')")
        wait_until(
            lambda: replication.with_broker(lambda stream, _: stream.state()) and replication.stream_state().messages,
            deadline_s=60,
        )
        machine.apply(machine.document("other", nats_url=None))  # the server's is meant
        [beside] = machine.wait_for_processes("other", 1)
        beside.kill()
        machine.wait_for_processes("other", 1, other_than=beside.pid)  # by then a group without a process would have one again
        assert (machine.processes(group), machine.processes(refused)) == ([first], [])
        assert refusal.read_text().count("pgsluice: ") == 1
        first.kill()
        [second] = machine.wait_for_processes(group, 1, other_than=first.pid)
        machine.apply(machine.document(group, check_interval="30s"), machine.document(refused))  # which is mended now
        [third] = machine.wait_for_processes(group, 1, other_than=second.pid)
        machine.wait_for_processes(refused, 1)
        assert "check-interval" in (machine.groups_directory / group / "replicator.yaml").read_text()
        order(machine, "stop", group)
        machine.wait_for_processes(group, 0)
        machine.server.kill()
        machine.server.start()
        order(machine, "start", group)
        machine.wait_for_processes(group, 1, other_than=third.pid)
        assert replication.audit().changes == 1
