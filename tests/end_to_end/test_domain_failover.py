"""A pipeline in three domains: a domain dies, and what worked in it goes on in another that is allowed, from its cursor.

Each domain is a machine with an address of its own and one of three nats-servers, tagged with the domain's name. What a process
remembers is in streams and buckets of three replicas. Machines take root, so this is one of the long tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.random_load import RandomLoad
from tests.servers import Database, NatsCluster, NatsServer, PgsluiceProcess, PostgresServer
from tests.servers.machines import Machine, MachineNetwork, MachinesUnavailableError
from tests.servers.nats_cluster import NodePlace
from tests.stream_lines import group_lines
from tests.waiting import wait_until
from tests.worker.sinks.nats.target import TargetStreamReader

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

DOMAINS = ("aws-a", "gcp-b", "azure-c")
ALLOWED = ("aws-a", "gcp-b")
CANNOT_SUCCEED = 70
REPLACED = (70, 75)
"""By the stream, where the worker tries to write; by the lease, where it is told first."""
STAND_BY = "waiting for the lease"
WORKS = "  reading  worker=nats"
MORE_MESSAGES = 200
TAKE_OVER_DEADLINE_S = 300.0  # a lease, an election, and Spark's start on a busy machine


class Domain:
    """``run`` starts a process of the group there."""

    def __init__(self, name: str, machine: Machine, node: NatsServer, keys: dict[str, Any], processes: ExitStack) -> None:
        self.machine = machine
        self.node = node
        self._keys = keys | {"domain": name, "nats-url": node.url}
        self._processes = processes

    def run(self, *role: str) -> PgsluiceProcess:
        process = PgsluiceProcess(*role, config=self._keys, launcher=self.machine.launcher)
        return self._processes.enter_context(process)


class Pipeline:
    """A replicator and ``worker nats``, each where it is started; what they make is in ``reader``'s stream."""

    def __init__(self, network: MachineNetwork, cluster: NatsCluster, source: Database, group: str, processes: ExitStack) -> None:
        self.group = group
        self._cluster = cluster
        self._source = source
        self.reader = TargetStreamReader(cluster.settings(), f"{group}-out")
        placed: dict[str, Any] = {"stream-replicas": 3, "stream-placement-tags": ["mirrored"], "allow-domains": list(ALLOWED)}
        placed |= {"nats-stream": self.reader.name, "nats-stream-replicas": 3, "nats-stream-placement-tags": ["mirrored"]}
        keys = configuration(group, source, None, cluster, **placed)
        self.domains = [
            Domain(name, machine, node, keys, processes)
            for name, machine, node in zip(DOMAINS, network.machines, cluster.nodes, strict=True)
        ]

    def await_more(self, *processes: PgsluiceProcess) -> None:
        """Messages in the target stream, while ``processes`` live."""
        seen = wait_until(self.reader.last_sequence, deadline_s=TAKE_OVER_DEADLINE_S, what="the target stream", interval_s=0.5)

        def is_more() -> bool:
            for process in processes:
                assert process.is_running, process.log()[-6000:]
            return self.reader.last_sequence() > seen + MORE_MESSAGES

        wait_until(is_more, deadline_s=TAKE_OVER_DEADLINE_S, what="more messages in the target stream", interval_s=0.5)

    def wait_until_current(self) -> None:
        """Returns when each domain has all that was published."""
        names = GroupNames(self.group)
        for stream in (names.changes_stream, f"KV_{names.bucket}", self.reader.name):
            self._cluster.wait_until_current(stream)

    def check(self, worker: PgsluiceProcess) -> None:
        """What is in the target stream by the end is what the raw stream has: each change once, in order."""
        self._source.execute("INSERT INTO journal VALUES ('the end', now())")

        def has_ended() -> bool:
            assert worker.is_running, worker.log()[-6000:]
            return "the end" in str(self.reader.lines()[-1]["after"])

        wait_until(has_ended, deadline_s=TAKE_OVER_DEADLINE_S, what="the last change", interval_s=2.0)
        raw = group_lines(self._cluster.settings(), self.group)
        assert len(raw) > 2 * MORE_MESSAGES
        assert self.reader.lines() == raw


@pytest.fixture(scope="module")
def network() -> Iterator[MachineNetwork]:
    try:
        made = MachineNetwork(len(DOMAINS))
    except MachinesUnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture(scope="module")
def postgres(network: MachineNetwork) -> Iterator[PostgresServer]:
    with PostgresServer(host=network.address) as server:
        yield server


@pytest.fixture
def cluster(network: MachineNetwork) -> Iterator[NatsCluster]:
    places = [
        NodePlace(machine.address, tuple(machine.launcher), (name, "mirrored"))
        for name, machine in zip(DOMAINS, network.machines, strict=True)
    ]
    with NatsCluster(places) as cluster:
        yield cluster


@pytest.fixture
def pipeline(network: MachineNetwork, cluster: NatsCluster, source_database: Database, group: str) -> Iterator[Pipeline]:
    RandomLoad.create_tables(source_database)
    with ExitStack() as processes:
        yield Pipeline(network, cluster, source_database, group, processes)


def test_a_worker_goes_on_in_another_allowed_domain_from_its_cursor_and_nowhere_else(
    pipeline: Pipeline, source_database: Database
) -> None:
    aws, gcp, azure = pipeline.domains
    replicator = gcp.run("replicator")
    replicator.wait_for_log("replicating")
    load = RandomLoad(source_database, seed=20261123, connections=2, most_rows=50)
    with load:
        first = aws.run("worker", "nats")
        pipeline.await_more(first)
        second = gcp.run("worker", "nats")
        second.wait_for_log(STAND_BY, deadline_s=TAKE_OVER_DEADLINE_S)
        elsewhere = azure.run("worker", "nats")
        assert elsewhere.wait() == CANNOT_SUCCEED, elsewhere.log()
        assert "DomainUnavailable: this process is in domain 'azure-c', and allow-domains is aws-a, gcp-b" in elsewhere.log()

        first.kill()  # and with it the whole domain
        aws.node.kill()
        second.wait_for_log(WORKS, deadline_s=TAKE_OVER_DEADLINE_S)
        pipeline.await_more(second)

        aws.node.start()
        pipeline.wait_until_current()
        third = aws.run("worker", "nats")
        third.wait_for_log(STAND_BY, deadline_s=TAKE_OVER_DEADLINE_S)
        for process in (second, replicator):
            process.kill()
        gcp.node.kill()
        aws.run("replicator")
        third.wait_for_log(WORKS, deadline_s=TAKE_OVER_DEADLINE_S)
        pipeline.await_more(third)
        load.stop()
        pipeline.check(third)


def test_a_worker_in_a_domain_that_was_cut_off_is_replaced_and_writes_nothing_when_it_is_back(
    pipeline: Pipeline, source_database: Database
) -> None:
    """Who works in the allowed domain that is left goes on; the one that was cut off learns that it was replaced, and ends."""
    aws, gcp, _ = pipeline.domains
    replicator = gcp.run("replicator")
    replicator.wait_for_log("replicating")
    load = RandomLoad(source_database, seed=20261124, connections=2, most_rows=50)
    with load:
        first = aws.run("worker", "nats")
        pipeline.await_more(first)
        second = gcp.run("worker", "nats")
        second.wait_for_log(STAND_BY, deadline_s=TAKE_OVER_DEADLINE_S)
        with aws.machine.cut_off():
            second.wait_for_log(WORKS, deadline_s=TAKE_OVER_DEADLINE_S)
            pipeline.await_more(second, replicator)
        assert first.wait(TAKE_OVER_DEADLINE_S) in REPLACED, first.log()[-6000:]
        pipeline.await_more(second, replicator)
        load.stop()
        pipeline.check(second)
