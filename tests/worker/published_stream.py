"""A group's stream of changes without a source: what a replicator would have published, and what a worker's sink holds of it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.settings import NatsSettings, WorkerSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, NO_ANCHOR, Anchor, Position
from pgsluice.testing.changes_builder import insert, table, transaction
from tests.worker.encoded_changes import body_of
from tests.worker.sinks.settings import worker_settings

STREAM = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)
TABLE = table("t", "id bigint")


def position_of(number: int) -> Position:
    return Position(LSN(number * 100), 1)


async def publish_inserts(client: Client, group: str, count: int, first: int = 1) -> None:
    """Makes the group's stream and bucket, and publishes rows ``first`` to ``count``, a transaction and a message for each."""
    names = GroupNames(group)
    await StateBucket(client, names).ensure(STREAM)
    stream = ChangeStream(client, names)
    await stream.ensure(STREAM)
    last = await stream.last_message()
    before = MessageHeaders.decode(last.headers) if last is not None else None
    anchor, total_bytes = ((before.anchor or NO_ANCHOR), before.total_bytes) if before is not None else (NO_ANCHOR, 0)
    for number in range(first, count + 1):
        position, committed_at = position_of(number), number * 1_000_000
        after, anchor = anchor, Anchor(position, number, committed_at)
        change = insert(TABLE, b"%d" % number)
        body = body_of(transaction(position.commit_lsn, change, xid=number, committed_at=committed_at))
        total_bytes += len(body)
        headers = MessageHeaders(position, position, LSN(0), number, total_bytes, anchor=anchor, after=after)
        await client.jetstream().publish(stream.subject, body, headers=headers.encode())


def settings_for(nats: NatsSettings, group: str) -> WorkerSettings:
    """A worker with room for everything in one batch."""
    return replace(worker_settings(group, nats, "w"), batch_messages=1000, batch_bytes=1 << 24)


def ids_in(path: Path) -> list[int]:
    """Of the rows that an SQLite sink holds."""
    with sqlite3.connect(path) as database:
        lines = database.execute("SELECT line FROM lines").fetchall()
    database.close()
    return [json.loads(line)["after"]["id"] for (line,) in lines]
