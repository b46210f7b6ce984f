"""The subscriptions sink in the driver: one pass through the stream for all that keep up, repeated for the others.

The worker's position, in the state bucket, is also that position of all LIVE receivers. The states of the others are
written before it moves, so after a crash each continues where it was or a little before: at least once, in stream
order. A new subscription begins after the newest message at the time of subscribing.

A sink that replays dead letters (its worker is called ``<worker>.replay``) sends them to all receivers; one that fails
or takes long makes the replay try again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.http.receiver import AllowedHosts, trusted_certificates
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.subscriptions.subscription_records import SubscriptionRecord
from pgsluice.shared.subscriptions.subscription_settings import OPTIONS
from pgsluice.shared.wire.names import replayed_worker
from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.abilities import Reread
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, DefinitionUse, Delivery, Lane, Receipt
from pgsluice.worker.sinks.subscriptions.event_writer import EventWriter, decode_events
from pgsluice.worker.sinks.subscriptions.open_service import OpenService
from pgsluice.worker.sinks.subscriptions.options import SubscriptionsSinkSettings
from pgsluice.worker.sinks.subscriptions.subscriber import Service, Subscriber
from pgsluice.worker.sinks.subscriptions.subscription_book import SubscriptionBook
from pgsluice.worker.sinks.subscriptions.subscription_secret import master_keys, subscription_signer

STATES = ("live", "behind", "failing", "paused")


class SubscriptionsSink:
    """Posts to all subscribers. Raises UsageError for contradictory settings."""

    delivery = Delivery.STREAMED
    definitions = DefinitionUse.PASSES_OVER

    def __init__(self, settings: WorkerSettings, subscriptions: SubscriptionsSinkSettings) -> None:
        self._settings = settings
        self._chosen = subscriptions
        self._worker = replayed_worker(settings.name)
        self._is_replay = self._worker != settings.name
        self._positions = BucketPositions(settings.nats, settings.group, settings.name)
        common, group = subscriptions.common, settings.group
        masters = master_keys(common.secret)
        self._service = Service(
            group,
            AllowedHosts.parse(common.allow_hosts, OPTIONS),
            trusted_certificates(common.ca_file, OPTIONS),
            common.timeout_s,
            settings.retry.webhook,
            subscriptions.pause_after_s,
            lambda identifier: subscription_signer(masters, group, identifier),
        )
        self._applied = NOTHING_APPLIED
        self._open: OpenService | None = None

    def open(self) -> Applied:
        """Opens the service; sends nothing yet."""
        if self._open is None:
            self._open = OpenService(self._chosen, self._new_subscriber, lambda: self._applied.sequence)
        self._applied = self._positions.load()
        book = SubscriptionBook(self._settings.nats, self._settings.group, self._worker)
        self._open.begin(book, self._applied.sequence, is_replay=self._is_replay)
        return self._applied

    def renumber(self, applied: Applied) -> None:
        self._positions.renumber(applied)
        self._applied = applied
        self._opened.rewind(applied.sequence)

    def reread_by(self, reread: Reread) -> None:
        self._opened.follow(reread)

    def held(self) -> int | None:
        service = self._open
        return None if service is None else service.receivers.held()

    def writer(self) -> EventWriter:
        return EventWriter(self._opened.receivers.views())

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        service, applied = self._opened, self._applied
        live = service.live
        live.begin(service.receivers.join_all() if self._is_replay else service.receivers.members())
        try:
            for receipt in receipts:
                if receipt.lane is Lane.CHANGES and not self._applied.covers(receipt):
                    live.take(decode_events(receipt.body))
                applied = applied.after(receipt, stream_created)
            live.finish(applied.sequence)
            self._check_replayed()
        except BaseException:
            live.abort()
            raise
        service.store()
        self._positions.store(applied)
        self._applied = applied
        service.receivers.note_applied(applied.sequence)
        return applied

    def finish_copy(self) -> None:
        """Does nothing: copied rows have no events."""

    def break_off(self) -> None:
        service = self._open
        if service is not None:
            service.live.halt()

    def collect(self) -> Sequence[Sample]:
        service = self._open
        if service is None:
            return []
        counts, behind = service.receivers.counts()
        live, catching_up = service.live, service.catching_up
        return [
            *(metrics.SUBSCRIPTIONS.at(counts[state], state) for state in STATES),
            metrics.SUBSCRIPTION_EVENTS.at(live.events, "live"),
            metrics.SUBSCRIPTION_EVENTS.at(catching_up.events, "behind"),
            metrics.SUBSCRIPTION_REQUESTS.at(live.accepted + catching_up.accepted, "accepted"),
            metrics.SUBSCRIPTION_REQUESTS.at(live.failed + catching_up.failed, "failed"),
            metrics.SUBSCRIPTION_BEHIND_MESSAGES.at(behind),
            metrics.SUBSCRIPTION_REREAD_MESSAGES.at(service.blocks.messages_read),
        ]

    def close(self) -> None:
        service, self._open = self._open, None
        if service is not None:
            service.close()
        self._positions.close()

    @property
    def _opened(self) -> OpenService:
        assert self._open is not None, "open comes first"
        return self._open

    def _check_replayed(self) -> None:
        left = self._opened.live.left if self._is_replay else 0
        if left:
            raise TransientError(
                f"{left} subscriptions did not take the dead letters",
                "they are replayed when the receivers take them; pause a subscription that is not to get them",
                Cause.TARGET,
            )

    def _new_subscriber(self, identifier: str, record: SubscriptionRecord, sequence: int) -> Subscriber:
        return Subscriber(identifier, record, self._service, sequence)
