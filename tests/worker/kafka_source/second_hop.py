"""Two hops: source, group, topics of Kafka, and a group that reads these."""

from __future__ import annotations

from typing import Any

from tests.end_to_end.group_under_test import configuration
from tests.servers import Database, NatsServer
from tests.servers.kafka import RealKafka

PARTITIONS = 3


def first_hop(group: str, source: Database, nats: NatsServer, broker: RealKafka, **more: Any) -> dict[str, Any]:
    """For the replicator and the worker kafka."""
    reached = {"kafka-brokers": broker.bootstrap, "kafka-allow-hosts": ["127.0.0.1"], "kafka-create-topics": True}
    topics = {"kafka-topic": f"{group}.{{table}}", "kafka-partitions": PARTITIONS, "kafka-replication-factor": 1}
    own = {"kafka-position-topic": f"{group}-positions", "format": "pgsluice"}
    return configuration(group, source, None, nats, **reached, **topics, **own, **more)


def second_hop(
    group: str, tables: list[str], target: Database | None, nats: NatsServer, broker: RealKafka, **more: Any
) -> dict[str, Any]:
    """For workers that read those topics; ``group`` is that of the first hop."""
    keys: dict[str, Any] = {"group": f"{group}-in", "nats-url": nats.url, "schema": "public", "log-level": "info"}
    if target is not None:
        keys |= {f"target-{key}": getattr(target.settings, key) for key in ("host", "port", "dbname", "user")}
        keys["target-password"] = target.settings.password or "unused"
    keys |= {"worker-source": "kafka", "source-kafka-brokers": broker.bootstrap, "source-kafka-allow-hosts": ["127.0.0.1"]}
    keys["source-topics"] = [f"{group}.{table}" for table in tables]
    return keys | {"spark": {"master": "local[2]", "memory": "512m"}} | more
