"""Three brokers of a real Kafka and their controller, which is never killed: elections happen when a test wants them.

An unclean one takes three steps: ``leave_alone`` makes one broker the only one that is in sync, a test has it take records, and
``elect_uncleanly`` kills it and starts another one first. Topics that may (``unclean.leader.election.enable``) elect one
then that lacks those records; others wait for the one that has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    PartitionMetadata,
    ResourceType,
)

from tests.servers.child import HOST
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until

BROKERS = 3
ANSWER_S = 30.0
_CONTROLLER_ID = 9
_PATIENCE = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000"}
"""How long a controller waits for a broker that is silent: 9 s otherwise."""
_COPIES = {
    "default.replication.factor": str(BROKERS),
    "offsets.topic.replication.factor": str(BROKERS),
    "transaction.state.log.replication.factor": str(BROKERS),
    "replica.fetch.wait.max.ms": "100",
}


class _Controller(RealKafka):
    title = "Kafka's controller"

    def __init__(self, settings: Mapping[str, str], users: Mapping[str, str] | None) -> None:
        super().__init__(_PATIENCE | dict(settings), users=users)
        self._controller_port = self.port

    def _properties(self, directory: Path) -> dict[str, str]:
        controller = f"{HOST}:{self.port}"
        return {
            "node.id": str(_CONTROLLER_ID),
            "process.roles": "controller",
            "controller.quorum.voters": f"{_CONTROLLER_ID}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CONTROLLER://{controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(directory / "data"),
        }


class KafkaNode(RealKafka):
    """A broker of a cluster, with its number."""

    def __init__(
        self, number: int, controller: _Controller, settings: Mapping[str, str], listeners: Mapping[str, str] | None
    ) -> None:
        super().__init__(_COPIES | _PATIENCE | dict(settings), listeners=listeners)
        self.number = number
        self._controller_port = controller.port
        self._cluster_id = controller._cluster_id

    def _properties(self, directory: Path) -> dict[str, str]:
        return super()._properties(directory) | {
            "node.id": str(self.number),
            "process.roles": "broker",
            "controller.quorum.voters": f"{_CONTROLLER_ID}@{HOST}:{self._controller_port}",
            "listeners": self._addresses(HOST),
        }


class KafkaCluster:
    """Leaving the context stops all and removes what they hold. ``settings`` are the controller's too; ``listeners`` and
    ``users`` are as RealKafka takes them. Brokers speak with each other by the plain listener."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self._controller = _Controller(settings or {}, users)
        self.nodes = [KafkaNode(number, self._controller, settings or {}, listeners) for number in range(1, BROKERS + 1)]

    def __enter__(self) -> Self:
        try:
            self._controller.start()
            self.start_all()
            wait_until(lambda: len(self._admin().list_topics(timeout=ANSWER_S).brokers) == BROKERS, what="three brokers")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for node in (*self.nodes, self._controller):
            node.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def leader_of(self, topic: str, partition: int = 0) -> KafkaNode:
        """Returns the broker that leads the partition; waits until one does."""
        number: int = wait_until(lambda: max(self._partitions(topic)[partition].leader, 0), what=f"a leader of {topic}")
        return self.nodes[number - 1]

    def let_elect_uncleanly(self, topics: Sequence[str], *, allowed: bool) -> None:
        entry = ConfigEntry("unclean.leader.election.enable", str(allowed).lower(), incremental_operation=AlterConfigOpType.SET)
        resources = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry]) for topic in topics]
        admin = self._admin()
        for future in admin.incremental_alter_configs(resources).values():
            future.result(ANSWER_S)

    def wait_until_in_sync(self, topics: Sequence[str]) -> None:
        self._wait_for_copies(topics, {node.number for node in self.nodes})

    def elect_cleanly(self, topics: Sequence[str]) -> KafkaNode:
        """Kills the leader of the first topic, and returns it when the others lead."""
        old = self.leader_of(topics[0])
        old.kill()
        self._wait_for_copies(topics, {node.number for node in self.nodes if node is not old})
        return old

    def leave_alone(self, node: KafkaNode, topics: Sequence[str]) -> None:
        """Kills the other brokers; returns when only this one is in sync, and leads."""
        for other in self.nodes:
            if other is not node:
                other.kill()
        self._wait_for_copies(topics, {node.number})

    def elect_uncleanly(self, alone: KafkaNode, topics: Sequence[str]) -> None:
        """Kills the one that was left alone and starts another one; returns when that leads ``topics``, which may elect it."""
        alone.kill()
        other = next(node for node in self.nodes if node is not alone)
        other.start()
        wait_until(lambda: self._is_led_by(topics, other), what=f"broker {other.number} as the leader")

    def start_all(self) -> None:
        """Starts those that do not run."""
        with ThreadPoolExecutor(BROKERS) as threads:
            list(threads.map(KafkaNode.start, [node for node in self.nodes if not node.is_running]))

    def _is_led_by(self, topics: Sequence[str], node: KafkaNode) -> bool:
        return all(each.leader == node.number for topic in topics for each in self._partitions(topic).values())

    def _wait_for_copies(self, topics: Sequence[str], numbers: set[int]) -> None:
        def agree() -> bool:
            found = [each for topic in topics for each in self._partitions(topic).values()]
            return bool(found) and all(set(each.isrs) == numbers and each.leader in numbers for each in found)

        wait_until(agree, what=f"{', '.join(topics)} in sync on {sorted(numbers)}", interval_s=0.2)

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        """Asks a broker that runs; returns {} while none answers."""
        try:
            return dict(self._admin().list_topics(topic, timeout=ANSWER_S).topics[topic].partitions)
        except KafkaException:
            return {}

    def _admin(self) -> AdminClient:
        running = [node.bootstrap for node in self.nodes if node.is_running]
        return AdminClient({"bootstrap.servers": ",".join(running), "log_level": 0})
