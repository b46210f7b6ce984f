"""The rights that docs/how-to/sink-kafka.md names, given to a user of a broker that asks for them."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

from tests.servers.kafka import RealKafka
from tests.servers.kafka_cluster import KafkaCluster

ANSWER_S = 60.0
ASKS_FOR_RIGHTS: Mapping[str, str] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings of a broker that lets the tests themselves do all, by its plain listener."""
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def allow(
    broker: RealKafka | KafkaCluster,
    user: str,
    kind: ResourceType,
    name: str,
    *operations: AclOperation,
    prefix: bool = False,
) -> None:
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    acls = [AclBinding(kind, name, pattern, f"User:{user}", "*", each, AclPermissionType.ALLOW) for each in operations]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_acls(acls).values():
        future.result(ANSWER_S)


def allow_as_the_page_says(broker: RealKafka | KafkaCluster, user: str, group: str) -> None:
    """For the worker ``sink`` of the group, which makes its topics."""
    allow(broker, user, ResourceType.TOPIC, f"{group}.", AclOperation.WRITE, AclOperation.CREATE, prefix=True)
    positions = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS, AclOperation.CREATE
    allow(broker, user, ResourceType.TOPIC, f"{group}-positions", *positions)
    allow(broker, user, ResourceType.TRANSACTIONAL_ID, f"pgsluice.{group}.sink", AclOperation.WRITE)
