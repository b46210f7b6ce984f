"""Being asked to stop: whatever waits ends by one exception, and a batch in hand is finished first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TransientError
from pgsluice.shared.process.retrying import Backoff, Pauses, RetryNews

POLL_INTERVAL_S = 0.5
WAIT_LOG_INTERVAL_S = 10.0

log = telemetry.logger(__name__)

T = TypeVar("T")


class StopRequested(Exception):  # noqa: N818  nothing failed
    """The worker was asked to stop while it waited for something. Ends ``Worker.run``, and never leaves it."""


class Patience(Protocol):
    """What is said while something is waited for, and how long to pause before it is asked for again."""

    def pause_after(self, error: TransientError | None) -> float:
        """Called after each question that had no answer, with what it raised."""
        ...


class Stopping:
    """Whether this process was asked to stop, and what waits until it was. Any thread may call."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._failure: BaseException | None = None

    def request(self) -> None:
        """May be called from a signal's handler."""
        self._requested.set()

    def end_with(self, error: BaseException) -> None:
        """A task in the background has ended, and with it this process: ``raise_failure`` says why."""
        log.warning("stopping, for a part of this worker has ended", reason=str(error) or type(error).__name__)
        self._failure = self._failure or error
        self._requested.set()

    def raise_failure(self) -> None:
        """Raises what ended a task in the background; nothing happens when none ended."""
        if self._failure is not None:
            raise self._failure

    def check(self) -> None:
        """Raises StopRequested when a stop was requested."""
        if self._requested.is_set():
            raise StopRequested

    def wait_for(self, question: Callable[[], T | None], patience: Patience) -> T:
        """What ``question`` answers as soon as it answers something and raises no TransientError. Raises StopRequested when that
        comes first."""
        while True:
            self.check()
            raised = None
            try:
                answer = question()
            except TransientError as error:
                answer, raised = None, error
            if answer is not None:
                return answer
            self._requested.wait(patience.pause_after(raised))

    def result_of(self, future: Future[T]) -> T:
        """The future's result, or what it raised. Raises StopRequested, with the future cancelled if that is possible, when that
        comes first."""
        try:
            self.wait_for(lambda: wait([future], POLL_INTERVAL_S).done or None, _Silent())
        except StopRequested:
            future.cancel()
            raise
        return future.result()


class Waiting:
    """Waits for what others do: every WAIT_LOG_INTERVAL_S the log says what, and what else may be the matter (``hint``)."""

    def __init__(self, waiting_for: str, hint: Callable[[], str] = lambda: "") -> None:
        self._waiting_for = waiting_for
        self._hint = hint
        self._logged_at = time.monotonic() - WAIT_LOG_INTERVAL_S + POLL_INTERVAL_S

    def pause_after(self, error: TransientError | None) -> float:
        if time.monotonic() - self._logged_at > WAIT_LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            reason = self._waiting_for if error is None else str(error)
            log.warning("waiting", waiting_for=reason, **({"or": said} if (said := self._hint()) else {}))
        return POLL_INTERVAL_S


class Retrying:
    """Does again what failed, after pauses that double. ``event`` is what the log says of a failure that is news."""

    def __init__(self, event: str, pauses: Pauses) -> None:
        self._event = event
        self._backoff = Backoff(pauses)
        self._news = RetryNews()

    def pause_after(self, error: TransientError | None) -> float:
        pause_s = self._backoff.next_pause_s()
        if error is not None and self._news.is_due(error):
            log.warning(self._event, reason=str(error), pause_s=round(pause_s, 3))
        return pause_s


class _Silent:
    """The question itself waits."""

    def pause_after(self, error: TransientError | None) -> float:
        return 0.0
