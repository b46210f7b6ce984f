"""Sends requests to the receiver, one at a time, until each is accepted or refused.

| answer | outcome | |---|---| | 2xx | accepted | | 408, 425, 429, 5xx | try again later; not before ``Retry-After``,
where given | | other 4xx | refused: the same request would be refused again | | anything else, redirects among them |
misdirected: this is not the receiver; an operator must act |
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import assert_never

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.http.receiver import ReceiverAnswer, ReceiverConnection
from pgsluice.shared.process.retrying import Backoff, Pauses
from pgsluice.worker.sinks.webhook.deliveries import Deliveries
from pgsluice.worker.sinks.webhook.lane_waits import LaneWaits
from pgsluice.worker.sinks.webhook.placed_lines import PlacedLine
from pgsluice.worker.sinks.webhook.request import Format, Signer, request_key

LONGEST_RETRY_AFTER_S = 3600.0  # a receiver's mistake must not silence the worker for a year; it is asked again then

_TOO_MANY_REQUESTS = 429
_TRY_AGAIN = frozenset({408, 425, _TOO_MANY_REQUESTS})


class RequestOutcome(enum.Enum):
    ACCEPTED = "accepted"
    TRY_AGAIN = "try again"
    REFUSED = "refused"
    MISDIRECTED = "misdirected"


def outcome_of(status: int) -> RequestOutcome:
    if 200 <= status < 300:
        return RequestOutcome.ACCEPTED
    if status in _TRY_AGAIN or status >= 500:
        return RequestOutcome.TRY_AGAIN
    return RequestOutcome.REFUSED if 400 <= status < 500 else RequestOutcome.MISDIRECTED


def parse_retry_after(header: str, now: datetime) -> float:
    """Returns the seconds to wait from ``now``: the header's number, or until its date (RFC 9110, 10.2.3). 0 for
    another text."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
    return min(max(seconds.total_seconds(), 0.0), LONGEST_RETRY_AFTER_S)


log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The common parts of this worker's requests."""

    group: str
    worker: str
    origin: str
    """The part of the URL for the log."""
    format: Format
    headers: Mapping[str, str] = field(repr=False)
    signer: Signer
    pauses: Pauses

    def headers_of(self, key: str, body: bytes) -> dict[str, str]:
        """Returns the headers of one attempt: the signature contains its time."""
        common = {"Content-Type": self.format.content_type, "Idempotency-Key": key}
        return common | dict(self.headers) | dict(self.signer.headers(key, int(time.time()), body))


class Pause:
    """Time until which the receiver asked all senders to pause; and whether to abort instead of waiting."""

    def __init__(self) -> None:
        self.halted = threading.Event()
        self._until = 0.0

    def extend(self, seconds: float) -> None:
        self._until = max(self._until, time.monotonic() + seconds)

    def wait(self, seconds: float = 0.0) -> None:
        """Waits at least ``seconds``; raises TransientError when halted."""
        until = time.monotonic() + seconds
        while (remaining := max(until, self._until) - time.monotonic()) > 0 and not self.halted.is_set():
            self.halted.wait(remaining)
        if self.halted.is_set():
            raise TransientError("a request was cancelled", "it is sent again with its batch", Cause.TARGET)


class RequestSender:
    """Use in a single thread, except ``abort``."""

    def __init__(
        self,
        lane: int,
        connection: ReceiverConnection,
        template: RequestTemplate,
        pause: Pause,
        waits: LaneWaits,
        deliveries: Deliveries,
    ) -> None:
        self._lane = lane
        self._connection = connection
        self._template = template
        self._pause = pause
        self._waits = waits
        self._deliveries = deliveries

    def deliver(self, lines: Sequence[PlacedLine]) -> None:
        """Returns when each line is delivered, refused, or held back after a refused one. A request that is refused is
        sent again in halves, until the refused line is alone.

        Tries indefinitely. Raises TransientError when halted, RejectedChanges when too much is refused, TerminalError.
        """
        lines = self._deliveries.without_refused_rows(self._lane, lines)
        if not lines:
            return
        status = self._send(lines)
        if outcome_of(status) is RequestOutcome.ACCEPTED:
            self._deliveries.note_delivered(self._lane, lines)
        elif len(lines) == 1:
            self._deliveries.note_refused(self._lane, lines[0], status)
        else:
            half = len(lines) // 2
            self.deliver(lines[:half])
            self.deliver(lines[half:])

    def abort(self) -> None:
        self._connection.abort()

    def close(self) -> None:
        self._connection.close()

    def _send(self, lines: Sequence[PlacedLine]) -> int:
        """Sends; returns the status of an answer that accepts or refuses."""
        template = self._template
        body = template.format.body(lines)
        key = request_key(template.group, template.worker, lines, body)
        backoff = Backoff(template.pauses)
        while True:
            self._pause.wait()
            try:
                answer = self._connection.post(template.headers_of(key, body), body)
            except TransientError as error:
                self._wait_after(error, backoff.next_pause_s(), key)
                continue
            match outcome_of(answer.status):
                case RequestOutcome.ACCEPTED | RequestOutcome.REFUSED:
                    self._waits.end(self._lane)
                    return answer.status
                case RequestOutcome.MISDIRECTED:
                    raise self._misdirected(answer)
                case RequestOutcome.TRY_AGAIN:
                    retry_after_s = parse_retry_after(answer.retry_after, datetime.now(UTC))
                    self._pause.extend(retry_after_s)
                    pause_s = max(backoff.next_pause_s(), template.pauses.varied(retry_after_s))
                    self._wait_after(self._put_off(answer), pause_s, key)
                case unreachable:
                    assert_never(unreachable)

    def _put_off(self, answer: ReceiverAnswer) -> TransientError:
        cause = Cause.THROTTLED if answer.status == _TOO_MANY_REQUESTS else Cause.TARGET
        return TransientError(f"{self._template.origin} answered with status {answer.status}", cause=cause)

    def _wait_after(self, error: TransientError, pause_s: float, key: str) -> None:
        if not self._pause.halted.is_set():
            log.warning(
                "a request was not accepted, trying again",
                receiver=self._template.origin,
                reason=str(error),
                pause_s=round(pause_s, 1),
                key=key,
            )
            self._waits.begin(self._lane, error, pause_s)
        self._pause.wait(pause_s)

    def _misdirected(self, answer: ReceiverAnswer) -> TerminalError:
        return TerminalError(
            f"{self._template.origin} answered with status {answer.status}, which is no receiver's",
            "redirects are not followed: set webhook-url to the address that receives",
        )
