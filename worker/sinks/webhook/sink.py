"""The webhook sink in the driver. ``request`` cuts requests, ``sender`` sends and retries them.

Tasks encode; the driver sends. A key's changes lie in several partitions, so only the driver, which sees all partitions
in commit order, can keep their order. Receipts are STREAMED to it, so a slow receiver makes the driver take them more
slowly, and memory is limited: a few receipts, and for each lane the request under way, the waiting ones, and the one
that fills.

Delivery is at least once: the position moves in the state bucket when every request of the batch is answered. A
successor that takes the batch up again sends the same requests with the same keys, although it may find more messages
after it: before the requests that the end of a batch leaves half full are sent, that end is announced in the record of
the position, and requests are cut there again.
"""

from __future__ import annotations

from collections.abc import Iterable

from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.http.receiver import (
    AllowedHosts,
    Receiver,
    ReceiverConnection,
    allowed_addresses,
    trusted_certificates,
)
from pgsluice.shared.process.pulse import Pulse
from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Delivery, Lane, Receipt
from pgsluice.worker.sinks.webhook.batch_delivery import BatchDelivery, Lanes
from pgsluice.worker.sinks.webhook.deliveries import Deliveries
from pgsluice.worker.sinks.webhook.lane_waits import LaneWaits
from pgsluice.worker.sinks.webhook.options import WebhookSinkSettings
from pgsluice.worker.sinks.webhook.request import Format, RequestCutter, RequestLimit, Signer, fixed_headers
from pgsluice.worker.sinks.webhook.sender import Pause, RequestSender, RequestTemplate
from pgsluice.worker.sinks.webhook.writer import LaneWriter

log = telemetry.logger(__name__)


class WebhookSink:
    """Posts to one URL; the position is in the group's state bucket. Raises UsageError for settings that cannot be meant."""

    delivery = Delivery.STREAMED
    keeps_catch_up = True

    def __init__(self, settings: WorkerSettings, webhook: WebhookSinkSettings) -> None:
        self._positions = BucketPositions(settings.nats, settings.group, settings.name)
        self._webhook = webhook
        self._form = LineEncoding.of(webhook.lines, settings.group)
        self.definitions = self._form.definitions
        self._receiver = Receiver.parse(webhook.url)
        self._allowed = AllowedHosts.parse(webhook.allow_hosts)
        form, signer = Format(webhook.format), Signer.parse(webhook.secret)
        headers = fixed_headers(webhook.headers, webhook.token)
        worker = settings.name.replace(".", "-")  # a replay's has a full stop, which separates what is signed
        origin, pauses = self._receiver.origin, settings.retry.webhook
        self._template = RequestTemplate(settings.group, worker, origin, form, headers, signer, pauses)
        self._limit = RequestLimit(1 if form is Format.SINGLE else webhook.batch_size, webhook.batch_bytes)
        self._deliveries = Deliveries(webhook.connections)
        self._waits = LaneWaits()
        self._lanes: Lanes | None = None
        self._applied = NOTHING_APPLIED

    def report_to(self, pulse: Pulse) -> None:
        self._waits.pulse = pulse

    def open(self) -> Applied:
        """Resolves the receiver's name, but sends nothing to it."""
        addresses = allowed_addresses(self._receiver, self._allowed)
        if not self._receiver.is_tls and not all(address.is_loopback for address in addresses):
            log.warning("the webhook's receiver is reached without TLS: rows travel in the clear", receiver=self._receiver.origin)
        self._applied = self._positions.load()
        self._lanes = self._new_lanes()
        return self._applied

    def renumber(self, applied: Applied) -> None:
        self._positions.renumber(applied)
        self._applied = applied

    def writer(self) -> LaneWriter:
        return LaneWriter(self._webhook.connections, self._form)

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        """Raises RejectedChanges when the receiver refuses changes. What was delivered by then is not sent again when the batch
        comes without them."""
        assert self._lanes is not None, "open comes first"
        applied = self._applied
        delivery: BatchDelivery | None = None
        try:
            for receipt in receipts:
                delivery = delivery or self._new_delivery(receipt.lane)
                if not self._applied.covers(receipt):
                    delivery.take(receipt)
                applied = applied.after(receipt, stream_created)
            assert delivery is not None, "a batch has at least one receipt"
            delivery.finish(applied)
        except BaseException:
            self._lanes.abort()
            raise
        self._positions.store(applied)
        self._applied = applied
        self._deliveries.forget()
        return applied

    def finish_copy(self) -> None:
        """Does nothing: a row is delivered when its batch is committed."""

    def break_off(self) -> None:
        lanes = self._lanes
        if lanes is not None:
            lanes.break_off()

    def close(self) -> None:
        lanes, self._lanes = self._lanes, None
        if lanes is not None:
            lanes.close()
        self._positions.close()

    def _new_delivery(self, lane: Lane) -> BatchDelivery:
        assert self._lanes is not None
        cutter = RequestCutter(self._webhook.connections, self._limit)
        return BatchDelivery(self._lanes, self._deliveries, cutter, self._positions, lane)

    def _new_lanes(self) -> Lanes:
        certificates = trusted_certificates(self._webhook.ca_file)
        pause = Pause()
        senders = [
            RequestSender(
                lane,
                ReceiverConnection(self._receiver, self._allowed, certificates, self._webhook.timeout_s),
                self._template,
                pause,
                self._waits,
                self._deliveries,
            )
            for lane in range(self._webhook.connections)
        ]
        return Lanes(senders, pause, self._waits)
