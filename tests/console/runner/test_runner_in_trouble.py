"""A runner that cannot do something for one group or unit, for now: it looks after all others, and goes on by itself."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.console.control_records import write_record
from tests.console.runner.machine import Machine
from tests.console.server.strangers import write_document
from tests.servers import NatsServer, PostgresServer
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """Of this module alone: no other runner is to meet its documents."""
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def machine(nats: NatsServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Each test has groups of its own."""
    source = postgres.create_database("source_of_groups_in_trouble")
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    with Machine(nats, source, tmp_path_factory.mktemp("in trouble")) as running:
        yield running
    source.drop()


def test_a_group_whose_lease_cannot_be_had_holds_up_no_other(machine: Machine, nats: NatsServer) -> None:
    write_record(nats, "runner.a-first", b"{}")
    machine.apply(machine.document("a-first"), machine.document("z-last"))
    machine.wait_for_processes("z-last", 1)
    assert machine.processes("a-first") == []
    assert "runner.a-first" in machine.server.process.log()
    write_record(nats, "runner.a-first", None)
    machine.wait_for_processes("a-first", 1)


def test_a_group_whose_document_cannot_be_read_holds_up_no_other(machine: Machine, nats: NatsServer) -> None:
    machine.apply(machine.document("damaged"))
    [first] = machine.wait_for_processes("damaged", 1)
    write_record(nats, "group.damaged", b"{}")
    machine.apply(machine.document("whole"))
    machine.wait_for_processes("whole", 1)
    assert machine.processes("damaged") == [first]
    with machine.server.client() as client:
        listed = {each["group"] for each in client.get("/documents").json()["documents"]}
        assert ("whole" in listed, "damaged" in listed) == (True, False)
        refused = client.get("/groups/damaged/document")
        assert (refused.status_code, "apply the document again" in refused.json()["remedy"]) == (409, True)
    machine.apply(machine.document("damaged", check_interval="30s"))  # as its remedy says
    machine.wait_for_processes("damaged", 1, other_than=first.pid)


def test_what_others_wrote_as_documents_starts_nothing_and_holds_up_no_other(machine: Machine, nats: NatsServer) -> None:
    machine.apply(machine.document("overwritten"))
    [first] = machine.wait_for_processes("overwritten", 1)
    write_document(nats, "overwritten", "overwritten", alert_command=["/bin/sh", "-c", "true"])
    write_document(nats, "A", "A")
    write_document(nats, "stranger", "A")
    write_document(nats, "program", "program", workers=["x=os:system"])
    machine.apply(machine.document("beside"))
    machine.wait_for_processes("beside", 1)
    wait_until(lambda: "group 'overwritten' may not name a program" in machine.server.process.log(), what="the warning")
    assert machine.processes("overwritten") == [first]
    assert {each.name for each in machine.groups_directory.iterdir()}.isdisjoint({"A", "stranger", "program"})


def test_a_unit_whose_end_cannot_be_noted_is_started_again(machine: Machine) -> None:
    """As when the disk is full: that may well be why it ended."""
    machine.apply(machine.document("full"))
    [first] = machine.wait_for_processes("full", 1)
    in_the_way = machine.groups_directory / "full" / f".replicator.json.{machine.server.process.pid}.new"
    in_the_way.mkdir()
    first.kill()
    psutil.wait_procs([first], timeout=30)
    wait_until(lambda: "how a process ended cannot be noted" in machine.server.process.log(), deadline_s=60)
    in_the_way.rmdir()
    machine.wait_for_processes("full", 1, other_than=first.pid)
