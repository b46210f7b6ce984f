"""A group that is looked at in a browser: its stream is a replicator's, its processes are the records that a test writes.

Playwright runs an event loop in the tests' thread, where no other may run; so what needs one runs in a thread beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import TypeVar

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.unit_records import ProcessRecord, process_key
from pgsluice.shared.broker.worker_records import LeaseRecord, WorkerReport, lease_key, worker_key
from pgsluice.shared.process.pulse import Activity
from pgsluice.shared.wire.names import GroupNames
from tests.console.server.test_orders import publish_letters
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import replicate, succeed
from tests.replicated_group import Group
from tests.servers import Database, NatsServer

T = TypeVar("T")

BEAT_S = 3.0


def aside(work: Callable[[], T]) -> T:
    """What ``work`` returns, done in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@dataclass(frozen=True)
class BrowsedGroup:
    """With one table, public.t (id, v)."""

    name: str
    source: Database
    nats: NatsServer

    def publish(self, *statements: str) -> None:
        """Carries them out at the source, and publishes what they changed."""
        for statement in statements:
            self.source.execute(statement)
        succeed(replicate(configuration(self.name, self.source, None, self.nats)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """As replicator and worker w tell of themselves that work, for as long as the context lasts."""
        ended = Event()
        with ThreadPoolExecutor(1) as pool:
            beating = pool.submit(lambda: asyncio.run(self._beat(ended)))
            try:
                yield
            finally:
                ended.set()
                beating.result()

    async def _beat(self, ended: Event) -> None:
        now = datetime.now(UTC).isoformat()
        async with connected(self.nats.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(self.name))
            while not ended.is_set():
                for unit in ("replicator", "worker.w"):
                    await bucket.put(process_key(unit), ProcessRecord("h", 1, now, now, Activity.WORKING, now))
                await bucket.put(lease_key("w"), LeaseRecord("h", 1))
                await asyncio.to_thread(ended.wait, BEAT_S)

    def apply_to(self, sequence: int) -> None:
        """As worker w tells that it has applied the stream up to there."""

        def put() -> None:
            report = WorkerReport(sequence, stream_created=self._group.stream_state().created)
            self._group.with_broker(lambda _, bucket: bucket.put(worker_key("w"), report))

        aside(put)

    def set_aside(self, *lsns: int) -> list[str]:
        """The positions of letters of worker w."""
        return aside(lambda: publish_letters(self.nats, self.name, *lsns))

    @property
    def _group(self) -> Group:
        return Group(self.name, self.source, self.nats.settings())
