"""One subscription while the worker runs: its receiver, how far that is, and how it fares."""

from __future__ import annotations

import contextlib
import enum
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, PgsluiceError, TransientError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, ReceiverConnection
from pgsluice.shared.process.defect import unexpected
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.subscriptions.subscription_records import ReceiverState, SubscriptionRecord
from pgsluice.worker.sinks.subscriptions.event_request import EventRequest
from pgsluice.worker.sinks.subscriptions.subscription_rules import EventView
from pgsluice.worker.sinks.webhook.request import USER_AGENT, Signer
from pgsluice.worker.sinks.webhook.sender import RequestOutcome, outcome_of, parse_retry_after

FIRST_REST_S = 10.0
"""A receiver that left the live pass stays away so long at least, and twice as long after each time: it must not hold the others
up again and again."""
LONGEST_REST_S = 600.0

_GONE = 410  # "the receiver wants no more", by Standard Webhooks

log = telemetry.logger(__name__)


class Standing(enum.Enum):
    """The way a receiver is served. ``value`` is its text for users."""

    LIVE = "live"
    """Served together with the worker."""
    BEHIND = "behind"
    """The stream is read again for it."""
    PAUSED = "paused"
    """No events are delivered."""


@dataclass(frozen=True, slots=True)
class Service:
    """Settings of all receivers."""

    group: str
    allowed: AllowedHosts
    certificates: ssl.SSLContext
    timeout_s: float
    pauses: Pauses
    pause_after_s: float
    signer_of: Callable[[str], Signer]


class Subscriber:
    """A receiver. State that is not private to a method changes under the lock of the live pass. At most one request is
    under way."""

    def __init__(self, identifier: str, record: SubscriptionRecord, service: Service, sequence: int) -> None:
        self.identifier = identifier
        self.take_record(record)
        self.sequence = sequence
        """Every event up to that message is delivered."""
        self.standing = Standing.BEHIND
        self.pending: deque[EventRequest] = deque()
        """The first may be under way."""
        self.pending_texts = 0
        self.pending_own_bytes = 0
        """Bytes of texts that are not shared, because rules made them."""
        self.sent_at: float | None = None
        """Begin of the request under way, by the monotonic clock."""
        self.is_scheduled = False
        self.failures = 0
        self.failing_since = ""
        self.reason = ""
        self.missed = 0
        self.resumed = record.resumed
        self._service = service
        self._signer = service.signer_of(identifier)
        self._connection: ReceiverConnection | None = None
        self._rest_s = FIRST_REST_S
        self._rests_until = 0.0
        self._asked_pause_s = 0.0
        self._is_gone = False
        self._sent_after = self.resumed

    @property
    def may_join(self) -> bool:
        """Returns whether it can join the pass again."""
        return not self.failures and time.monotonic() >= self._rests_until

    def take_record(self, record: SubscriptionRecord) -> None:
        """Applies the current record."""
        self.record = record
        self.view = EventView.of(record)
        self.view_digest = None if self.view is None else self.view.digest

    def take_state(self, state: ReceiverState) -> None:
        """Takes over the state that another process stored."""
        self.sequence, self.failures, self.reason = state.sequence, state.failures, state.reason
        self.failing_since, self.missed, self.resumed = state.failing_since, state.missed, state.resumed
        self.standing = Standing.PAUSED if state.state == Standing.PAUSED.value else Standing.BEHIND

    def state(self) -> ReceiverState:
        """Returns the state, of a receiver that is not LIVE, for users and for the next process."""
        state = "failing" if self.standing is Standing.BEHIND and self.failures else self.standing.value
        facts = self.failing_since, self.failures, self.reason, self.missed, self.resumed
        return ReceiverState(self.sequence, state, *facts)

    def begin_sending(self) -> EventRequest:
        """Notes that the first request that waits is under way, and returns it."""
        self.sent_at, self._sent_after = time.monotonic(), self.resumed
        return self.pending[0]

    def queue(self, request: EventRequest) -> None:
        self.pending.append(request)
        self._count(request, 1)

    def drop_last(self) -> None:
        """Drops the last request that waits."""
        self._count(self.pending.pop(), -1)

    def drop_pending(self) -> None:
        """Drops pending texts, which are read from the stream again."""
        self.pending.clear()
        self.pending_texts = self.pending_own_bytes = 0

    def post(self, request: EventRequest) -> PgsluiceError | None:
        """Sends it; what went wrong, whatever that is, or None when it was accepted. Blocks."""
        try:
            return self._posted(request)
        except PgsluiceError as error:
            return error
        except Exception as error:  # noqa: BLE001  a request without an end would hold the stream for good
            return unexpected(error, "a request")

    def _posted(self, request: EventRequest) -> PgsluiceError | None:
        body = request.body
        key = request.identify(self._service.group, self.identifier, body)
        common = {"User-Agent": USER_AGENT, "Content-Type": "application/json", "Idempotency-Key": key}
        headers = common | {"Pgsluice-Subscription": self.identifier} | dict(self._signer.headers(key, int(time.time()), body))
        self._asked_pause_s, self._is_gone = 0.0, False
        answer = self._connected().post(headers, body)
        if outcome_of(answer.status) is RequestOutcome.ACCEPTED:
            return None
        self._asked_pause_s = parse_retry_after(answer.retry_after, datetime.now(UTC))
        if answer.status == _GONE:
            self._is_gone = True
            return TransientError(f"{self.record.receiver} answered with status {_GONE}: it wants no more", cause=Cause.TARGET)
        return TransientError(f"{self.record.receiver} answered with status {answer.status}", cause=Cause.TARGET)

    def note_accepted(self, request: EventRequest) -> None:
        if self.failures:
            log.info("a subscription's receiver accepts again", subscription=self.identifier, receiver=self.record.receiver)
        self.failures, self.failing_since, self.reason = 0, "", ""
        if self._sent_after == self.resumed:  # else a user resumed it elsewhere meanwhile
            self.sequence = max(self.sequence, request.through)
        if self.pending and self.pending[0] is request:
            self.pending.popleft()
            self._count(request, -1)

    def note_failure(self, error: PgsluiceError) -> float:
        """Notes a failure; returns the pause before the next attempt. Pauses one that failed for too long."""
        now = datetime.now(UTC)
        self.failures += 1
        self.failing_since = self.failing_since or now.isoformat()
        self.reason = error.fact
        failing_s = (now - datetime.fromisoformat(self.failing_since)).total_seconds()
        if self.failures == 1:
            log.warning("a subscription's receiver fails", subscription=self.identifier, reason=error.fact)
        if self._is_gone or failing_s >= self._service.pause_after_s:
            self._pause_failing()
        return max(self._service.pauses.after(self.failures), self._asked_pause_s)

    def note_unworkable(self, reason: str) -> None:
        """Notes that its rules cannot be applied to the next message. It must not get that without them, and nothing is
        left out silently: a user resumes it after that message, or subscribes with other rules."""
        self.reason, self.failing_since = reason, datetime.now(UTC).isoformat()
        self._pause_failing()

    def note_missed(self, through: int) -> None:
        """Notes that the messages up to that one are gone."""
        log.warning(
            "a subscription missed messages that are gone", subscription=self.identifier, first=self.sequence + 1, last=through
        )
        self.sequence = self.missed = through

    def join(self) -> None:
        """Joins the pass."""
        self.standing = Standing.LIVE

    def leave_pass(self) -> None:
        """Leaves the pass, until it has caught up. Waiting events are read again from the stream."""
        self.standing = Standing.BEHIND
        self.drop_pending()

    def leave_and_rest(self) -> None:
        """Leaves the pass after delaying the others."""
        self.leave_pass()
        self._rests_until = time.monotonic() + self._rest_s
        self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)

    def pause(self) -> None:
        self.standing = Standing.PAUSED
        self.drop_pending()

    def resume(self, record: SubscriptionRecord) -> None:
        """Resumes as a user requested: at its position, after messages to leave out, or before messages to repeat."""
        self.leave_pass()
        self.resumed = record.resumed
        self.failures, self.failing_since, self.reason, self.missed = 0, "", "", 0
        self._rests_until = 0.0
        self.sequence = max(self.sequence, record.skips) if record.back_to is None else record.back_to

    def rewind(self, sequence: int) -> None:
        """Moves back when the stream is numbered again: at most that message is delivered."""
        self.sequence = min(self.sequence, sequence)

    def abort(self) -> None:
        """Aborts from another thread and for good."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _pause_failing(self) -> None:
        self.standing = Standing.PAUSED
        self.drop_pending()
        log.warning("a subscription is paused", subscription=self.identifier, owner=self.record.owner, reason=self.reason)

    def _count(self, request: EventRequest, times: int) -> None:
        self.pending_texts += times * len(request.texts)
        if self.view is not None:
            self.pending_own_bytes += times * sum(map(len, request.texts))

    def _connected(self) -> ReceiverConnection:
        if self._connection is None:
            service = self._service
            receiver = Receiver.parse(self.record.url, "subscriptions")
            self._connection = ReceiverConnection(receiver, service.allowed, service.certificates, service.timeout_s)
        return self._connection
