"""Requests to stop or to rest: all waits end by one exception, and a current batch is finished first."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TransientError
from pgsluice.shared.process.pulse import Activity, Pulse
from pgsluice.shared.process.retrying import Backoff, Pauses, RetryNews

POLL_INTERVAL_S = 0.5
WAIT_LOG_INTERVAL_S = 10.0

log = telemetry.logger(__name__)

T = TypeVar("T")


class StopRequested(Exception):  # noqa: N818  nothing failed
    """The worker was asked to stop while it waited for something. Ends ``Worker.run``, and never leaves it."""


class PauseRequested(Exception):  # noqa: N818  nothing failed
    """The worker must rest: its work ends as for a stop, and begins again when it is resumed."""


class Patience(Protocol):
    """Messages and pauses of a wait."""

    @property
    def waiting_for(self) -> str:
        """The text for the log; nothing is logged when it is ""."""
        ...

    def pause_after(self, error: TransientError | None) -> float:
        """Called after each question that had no answer, with what it raised."""
        ...


class WorkerStopping:
    """Requests to stop or to rest, and waits that end by them. Any thread may call."""

    def __init__(self, pulse: Pulse) -> None:
        """``pulse`` gets the current wait."""
        self._pulse = pulse
        self._requested = threading.Event()
        self._is_pause_wanted = False
        self._may_pause = False
        self._interrupted = threading.Event()
        """Ends waits: a stop or a pause was asked for."""
        self._failure: BaseException | None = None

    def request(self) -> None:
        """Requests a stop, effective in a moment. May be called from a signal's handler: the thread that it interrupts
        may be holding an event's lock, so another one sets it, and is begun without any lock."""
        _thread.start_new_thread(self._request, ())

    def _request(self) -> None:
        self._requested.set()
        self._interrupted.set()

    def pause(self, *, is_wanted: bool) -> None:
        """Pauses the worker from now on, or resumes it. That ends no wait before ``rest`` was called first."""
        self._is_pause_wanted = is_wanted
        if is_wanted and self._may_pause:
            self._interrupted.set()
            return
        self._interrupted.clear()
        if self._requested.is_set():  # perhaps just before
            self._interrupted.set()

    @property
    def is_requested(self) -> bool:
        """Returns whether a stop was requested."""
        return self._requested.is_set()

    def rest(self) -> None:
        """Returns when no pause is wanted, at once when none is. Raises StopRequested."""
        self._may_pause = True
        before = self._pulse.activity
        if self._is_pause_wanted:
            log.info("paused, until 'pgsluice resume'")
        while self._is_pause_wanted and not self._requested.is_set():
            self._pulse.activity = Activity.PAUSED
            self._pulse.progressed(idle=True)
            self._requested.wait(POLL_INTERVAL_S)
        if self._requested.is_set():
            raise StopRequested
        self._pulse.activity = before

    def end_with(self, error: BaseException) -> None:
        """Ends this process because a background task has ended: ``raise_failure`` raises the error."""
        log.warning("stopping, for a part of this worker has ended", reason=str(error) or type(error).__name__)
        self._failure = self._failure or error
        self._request()

    def raise_failure(self) -> None:
        """Raises what ended a task in the background; nothing happens when none ended."""
        if self._failure is not None:
            raise self._failure

    def check(self) -> None:
        """Raises StopRequested when a stop was requested, else PauseRequested when a pause is wanted."""
        if self._requested.is_set():
            raise StopRequested
        if self._is_pause_wanted and self._may_pause:
            raise PauseRequested

    def wait_for(self, question: Callable[[], T | None], patience: Patience) -> T:
        """Returns the answer of ``question`` as soon as it returns one and raises no TransientError. Raises as
        ``check`` when that comes first."""
        while True:
            self.check()
            raised = None
            try:
                answer = question()
            except TransientError as error:
                answer, raised = None, error
            if answer is not None:
                self._pulse.progressed()
                return answer
            pause_s = patience.pause_after(raised)
            if raised is not None or patience.waiting_for:
                # no cause: the fact names what is waited for
                self._pulse.waits(raised or TransientError(f"waiting for {patience.waiting_for}"), pause_s)
            self._interrupted.wait(pause_s)

    def result_of(self, future: Future[T]) -> T:
        """Returns the future's result, or what it raised. Raises as ``check``, with the future cancelled if that is
        possible, when that comes first."""
        try:
            self.wait_for(lambda: wait([future], POLL_INTERVAL_S).done or None, _Silent())
        except (StopRequested, PauseRequested):
            future.cancel()
            raise
        return future.result()


class Waiting:
    """Waits for other processes: every WAIT_LOG_INTERVAL_S the log names the wait, and a possible cause (``hint``)."""

    def __init__(self, waiting_for: str, hint: Callable[[], str] = lambda: "") -> None:
        self.waiting_for = waiting_for
        self._hint = hint
        self._logged_at = time.monotonic() - WAIT_LOG_INTERVAL_S + POLL_INTERVAL_S

    def pause_after(self, error: TransientError | None) -> float:
        if time.monotonic() - self._logged_at > WAIT_LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            reason = self.waiting_for if error is None else str(error)
            log.warning("waiting", waiting_for=reason, **({"or": said} if (said := self._hint()) else {}))
        return POLL_INTERVAL_S


class Retrying:
    """Retries, after pauses that double. ``event`` is the log message of a new failure."""

    waiting_for = ""

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

    waiting_for = ""

    def pause_after(self, error: TransientError | None) -> float:
        return 0.0
