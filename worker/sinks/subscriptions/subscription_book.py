"""The subscriptions and the progress of each receiver, read from and written to the state bucket.

A separate thread checks twice a second for new subscriptions, and writes the progress of receivers. Before the worker's
own position moves, ``store`` writes changed states: so a receiver that lags behind the worker is never forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from nats.aio.client import Client

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import Entry, StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.process.defect import unexpected
from pgsluice.shared.process.retrying import RetryNews
from pgsluice.shared.subscriptions.subscription_records import (
    CHANGED_KEY,
    ReceiversRecord,
    Standings,
    SubscriptionRecord,
    load_receivers,
    load_subscriptions,
    receivers_key,
)
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.event_loop import EventLoopThread

LOOK_INTERVAL_S = 0.5
LOOKS_BEFORE_ALL_AGAIN = 60  # should a write of CHANGED_KEY have been lost
CLOSE_TIMEOUT_S = 5.0

Subscriptions = Mapping[str, Entry[SubscriptionRecord]]

log = telemetry.logger(__name__)


class SubscriptionBook:
    """Blocking calls over a separate NATS connection. ``take`` is called with all subscriptions of this worker when any
    was written; ``standings`` are read periodically."""

    def __init__(self, settings: NatsSettings, group: str, worker: str) -> None:
        self._settings = settings
        self._names = GroupNames(group)
        self._worker = worker
        self._loop = EventLoopThread("pgsluice-subscriptions")
        self._client: Client | None = None
        self._bucket: StateBucket | None = None
        self._stored: Standings | None = None
        self._storing = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._news = RetryNews()
        self._revision = 0

    def open(self) -> tuple[Subscriptions, Standings]:
        """Returns the stored state. Raises TransientError, TerminalError."""
        name = f"pgsluice worker {self._names.group}/{self._worker} subscriptions"
        if self._client is None:
            self._client = self._loop.run(connect(self._settings, name))
        self._bucket = StateBucket(self._client, self._names)
        self._stored = self._loop.run(load_receivers(self._bucket, self._worker))
        self._revision = self._changed_revision()
        return self._mine(), self._stored

    def follow(self, take: Callable[[Subscriptions], None], standings: Callable[[], Standings]) -> None:
        """Follows changes until ``close``."""
        self._thread = threading.Thread(target=self._run, args=(take, standings), name="pgsluice-subscription-book", daemon=True)
        self._thread.start()

    def store(self, standings: Callable[[], Standings]) -> None:
        """Stores states, which are durable when it returns; nothing is written when nothing changed. Raises
        TransientError."""
        assert self._bucket is not None, "open comes first"
        with self._storing:
            current = standings()
            if current != self._stored:
                self._loop.run(self._bucket.put(receivers_key(self._worker), ReceiversRecord.of(*current)))
                self._stored = current

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        client, self._client = self._client, None
        try:
            if client is not None:
                self._loop.run(disconnect(client), CLOSE_TIMEOUT_S)
        finally:
            self._loop.close()

    def _run(self, take: Callable[[Subscriptions], None], standings: Callable[[], Standings]) -> None:
        looks = 0
        while not self._ending.wait(LOOK_INTERVAL_S):
            looks += 1
            try:
                revision = self._changed_revision()
                if revision != self._revision or looks % LOOKS_BEFORE_ALL_AGAIN == 0:
                    take(self._mine())
                    self._revision = revision
                self.store(standings)
            except TransientError as error:
                if self._news.is_due(error):
                    log.warning("subscriptions cannot be looked at, trying again", reason=str(error))
            except Exception as error:  # noqa: BLE001  a thread must not die alone: who subscribes later would not be served
                known = error if isinstance(error, PgsluiceError) else unexpected(error, "the look for subscriptions")
                if self._news.is_due(known):
                    log.error("subscriptions cannot be read; the known ones continue", reason=str(known))

    def _changed_revision(self) -> int:
        assert self._bucket is not None
        entry = self._loop.run(self._bucket.get(CHANGED_KEY))
        return 0 if entry is None else entry.revision

    def _mine(self) -> Subscriptions:
        assert self._bucket is not None
        found = self._loop.run(load_subscriptions(self._bucket))
        return {identifier: entry for identifier, entry in found.items() if entry.value.worker == self._worker}
