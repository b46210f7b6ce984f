"""Settings of a replicator between the shared servers, and what its stream and records hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from pgsluice.replicator.replicator import run
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream, StoredMessage, StreamState
from pgsluice.shared.config.placement_settings import PlacementSettings
from pgsluice.shared.config.settings import LogSettings, NatsSettings, ReplicatorSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.process.retrying import DEFAULT_POLICY
from pgsluice.shared.wire.names import GroupNames
from tests.alerting import NO_ALERTS
from tests.endpoints import NO_METRICS
from tests.servers import Database
from tests.stream_audit import Audit, audit_stream

T = TypeVar("T")

ALL_OPERATIONS = ("insert", "update", "delete", "truncate")


def replicator_settings(group: str, source: Database, nats: NatsSettings, **changed: Any) -> ReplicatorSettings:
    """Replicates schema public up to now, then ends; ``changed`` replaces fields, ``max_bytes`` and ``retention_s`` too."""
    stream = StreamSettings(
        replicas=1,
        placement_tags=(),
        max_bytes=changed.pop("max_bytes", 1 << 30),
        compression=changed.pop("compression", "none"),
        retention_s=changed.pop("retention_s", 86_400.0),
    )
    fields: dict[str, Any] = {
        "group": group,
        "source": source.settings,
        "nats": nats,
        "stream": stream,
        "log": LogSettings(level="INFO", format="text"),
        "schema": "public",
        "tables": (),
        "publish": ALL_OPERATIONS,
        "publication": "",
        "without_copy": (),
        "check_interval_s": 60.0,
        "failover": False,
        "origin": "any",
        "slot_timeout_s": 60.0,
        "track_ddl": False,
        "recopy_altered": True,
        "until_lsn": "current",
        "copy": None,
        "connect_timeout_s": 15.0,
        "placement": PlacementSettings("", ()),
        "metrics": NO_METRICS,
        "spark": {"spark.master": "local[1]"},
        "retry": DEFAULT_POLICY,
        "alerts": NO_ALERTS,
    }
    return ReplicatorSettings(**(fields | changed))


@dataclass(frozen=True)
class Group:
    """One group between one source and one broker."""

    name: str
    source: Database
    nats: NatsSettings

    @property
    def names(self) -> GroupNames:
        return GroupNames(self.name)

    def settings(self, **changed: Any) -> ReplicatorSettings:
        return replicator_settings(self.name, self.source, self.nats, **changed)

    def replicate(self, **changed: Any) -> None:
        """Publishes everything that is committed now."""
        run(self.settings(**changed))

    def audit(self) -> Audit:
        """The stream's audit, which must have found nothing."""
        audit = asyncio.run(audit_stream(self.nats, self.name))
        assert audit.problems == []
        return audit

    def with_broker(self, ask: Callable[[ChangeStream, StateBucket], Any]) -> Any:
        """What the coroutine that ``ask`` makes returns."""

        async def call() -> Any:
            async with connected(self.nats, "test") as client:
                return await ask(ChangeStream(client, self.names), StateBucket(client, self.names))

        return asyncio.run(call())

    def stream_state(self) -> StreamState:
        state = self.with_broker(lambda stream, _: stream.state())
        assert isinstance(state, StreamState)
        return state

    def last_message(self) -> StoredMessage:
        message = self.with_broker(lambda stream, _: stream.last_message())
        assert isinstance(message, StoredMessage)
        return message

    def record(self, key: str) -> dict[str, Any]:
        entry = self.with_broker(lambda _, bucket: bucket.get(key))
        assert entry is not None
        value: dict[str, Any] = orjson.loads(entry.value)
        return value

    def confirmed_lsn(self) -> str:
        [(lsn,)] = self.source.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [self.names.slot]
        )
        return str(lsn)
