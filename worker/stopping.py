"""Being asked to stop or to rest: whatever waits ends by one exception, and a batch in hand is finished first."""

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
    """The worker is to rest: what it does ends as for a stop, and begins anew when it may go on."""


class Patience(Protocol):
    """What is said while something is waited for, and how long to pause before it is asked for again."""

    @property
    def waiting_for(self) -> str:
        """For people, who are told nothing when it is ""."""
        ...

    def pause_after(self, error: TransientError | None) -> float:
        """Called after each question that had no answer, with what it raised."""
        ...


class Stopping:
    """Whether this process was asked to stop or to rest, and what waits until it was. Any thread may call."""

    def __init__(self, pulse: Pulse) -> None:
        """``pulse`` is told what is waited for."""
        self._pulse = pulse
        self._requested = threading.Event()
        self._is_pause_wanted = False
        self._may_pause = False
        self._interrupted = threading.Event()
        """Ends waits: a stop or a pause was asked for."""
        self._failure: BaseException | None = None

    def request(self) -> None:
        """In force in a moment. May be called from a signal's handler: the thread that it interrupts may hold an event's lock,
        so another one sets it, and is begun without any lock."""
        _thread.start_new_thread(self._request, ())

    def _request(self) -> None:
        self._requested.set()
        self._interrupted.set()

    def pause(self, *, is_wanted: bool) -> None:
        """The worker is to rest from now on, or may go on. That ends no wait before ``rest`` was called first."""
        self._is_pause_wanted = is_wanted
        if is_wanted and self._may_pause:
            self._interrupted.set()
            return
        self._interrupted.clear()
        if self._requested.is_set():  # perhaps just before
            self._interrupted.set()

    @property
    def is_requested(self) -> bool:
        """Whether to stop."""
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
        """A task in the background has ended, and with it this process: ``raise_failure`` says why."""
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
        """What ``question`` answers as soon as it answers something and raises no TransientError. Raises as ``check``
        when that comes first."""
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
                # no cause: the fact says what is waited for
                self._pulse.waits(raised or TransientError(f"waiting for {patience.waiting_for}"), pause_s)
            self._interrupted.wait(pause_s)

    def result_of(self, future: Future[T]) -> T:
        """The future's result, or what it raised. Raises as ``check``, with the future cancelled if that is possible, when that
        comes first."""
        try:
            self.wait_for(lambda: wait([future], POLL_INTERVAL_S).done or None, _Silent())
        except (StopRequested, PauseRequested):
            future.cancel()
            raise
        return future.result()


class Waiting:
    """Waits for what others do: every WAIT_LOG_INTERVAL_S the log says what, and what else may be the matter (``hint``)."""

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
    """Does again what failed, after pauses that double. ``event`` is what the log says of a failure that is news."""

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
