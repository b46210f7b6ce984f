"""A subscriptions sink with its state bucket and receivers, and a stream that is a list: no Spark, no replicator."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import MissingMessagesError
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Pauses
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.subscriptions.subscription_records import (
    CHANGED_KEY,
    ChangedRecord,
    Standings,
    SubscriptionRecord,
    load_receivers,
    read_paused,
    subscription_key,
)
from pgsluice.shared.subscriptions.subscription_settings import EVENTS, SubscriptionSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import insert, message, table
from pgsluice.worker.sinks.sink import Applied, Partition, PartitionWriter
from pgsluice.worker.sinks.subscriptions.options import SubscriptionsSinkSettings
from pgsluice.worker.sinks.subscriptions.sink import SubscriptionsSink
from tests.servers.http_server import HttpServer
from tests.worker.sinks.settings import worker_settings

SECRET = "whsec_" + "c2VjcmV0" * 6
WORKER = "subscriptions"
ROWS = table("public.rows", "id bigint", "note text")

QUICK = DEFAULT_POLICY._replace(webhook=Pauses(0.01, 0.05))


def rows(first: int, last: int) -> list[MessageChanges]:
    """A message for each, with one row of that id."""
    return [message(n, insert(ROWS, b"%d" % n, b"n")) for n in range(first, last + 1)]


class Stage:
    """``stream`` is what was published; messages up to ``removed`` are gone."""

    def __init__(self, nats: NatsSettings, group: str) -> None:
        self.nats = nats
        self.group = group
        self.stream: list[MessageChanges] = []
        self.removed = 0
        self.sinks: list[SubscriptionsSink] = []

    def subscribe(self, receiver: HttpServer, path: str, **more: Any) -> str:
        """The subscription's id, behind nothing unless more is said."""
        identifier = secrets.token_hex(8)
        origin = f"http://127.0.0.1:{receiver.port}"
        wish: dict[str, Any] = {"owner": "ann", "worker": WORKER, "events": EVENTS} | more
        self.write(identifier, SubscriptionRecord(receiver=origin, url=f"{origin}/{path}", **wish))
        return identifier

    def write(self, identifier: str, record: SubscriptionRecord | None) -> None:
        async def write() -> None:
            async with connected(self.nats, "test") as client:
                bucket = StateBucket(client, GroupNames(self.group))
                if record is None:
                    await bucket.delete(subscription_key(identifier))
                else:
                    await bucket.put(subscription_key(identifier), record)
                await bucket.put(CHANGED_KEY, ChangedRecord("2026-01-31T12:00:00+00:00"))

        asyncio.run(write())

    def read(self, identifier: str) -> SubscriptionRecord:
        async def read() -> SubscriptionRecord:
            async with connected(self.nats, "test") as client:
                entry = await StateBucket(client, GroupNames(self.group)).read(subscription_key(identifier), SubscriptionRecord)
                assert entry is not None
                return entry.value

        return asyncio.run(read())

    def standings(self) -> Standings:
        """As they are written."""

        async def read() -> Standings:
            async with connected(self.nats, "test") as client:
                return await load_receivers(StateBucket(client, GroupNames(self.group)), WORKER)

        return asyncio.run(read())

    def told_of(self) -> dict[str, str]:
        """What alerts find."""

        async def read() -> dict[str, str]:
            async with connected(self.nats, "test") as client:
                return await read_paused(StateBucket(client, GroupNames(self.group)))

        return asyncio.run(read())

    def start(self, name: str = WORKER, **changed: Any) -> SubscriptionsSink:
        """A worker's sink, open and about to get its first batch."""
        sink = self.new_sink(name, **changed)
        self.sinks.append(sink)
        sink.open()
        sink.reread_by(self.reread)
        return sink

    def new_sink(self, name: str = WORKER, **changed: Any) -> SubscriptionsSink:
        """Not open."""
        settings = replace(worker_settings(self.group, self.nats, name), retry=QUICK)
        common = SubscriptionSettings(SECRET, changed.pop("timeout_s", 20.0), "", ("127.0.0.1",))
        chosen: dict[str, Any] = {
            "connections": 8,
            "patience_s": 0.2,
            "pause_after_s": 3600.0,
            "batch_size": 10,
            "batch_bytes": 1 << 20,
        }
        return SubscriptionsSink(settings, SubscriptionsSinkSettings(common=common, **chosen | changed))

    def publish(self, count: int) -> list[MessageChanges]:
        """What is new in the stream."""
        new = rows(len(self.stream) + 1, len(self.stream) + count)
        self.stream += new
        return new

    def apply(self, sink: SubscriptionsSink, count: int) -> Applied:
        """Publishes so many messages, and applies them in one batch."""
        return apply(sink, [self.publish(count)])

    def reread(self, writer: PartitionWriter, first: int, last: int) -> Iterator[tuple[bytes, int]]:
        if first <= self.removed:
            raise MissingMessagesError("messages are gone", "", self.removed + 1)
        some = self.stream[first - 1 : last]
        for body in writer.write(Partition(first, last), some):
            yield body, last

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def ids(receiver: HttpServer, path: str) -> list[int]:
    """Of the rows that the receiver at ``path`` accepted, in order."""
    return [each["after"]["id"] for request in receiver.accepted if request.target == f"/{path}" for each in request.objects]


def first_of_each(found: Sequence[int]) -> list[int]:
    """Without what came again."""
    return list(dict.fromkeys(found))
