"""Values that are read when a scrape asks for them, and not before.

A scrape comes four times a minute; reading in between would slow down a backlog. A scrape waits a moment for the
answer, and no longer: the server that answers may be unreachable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ANSWER_DEADLINE_S = 0.5
"""Shorter than the time limit of probes: one second in Kubernetes, by default."""

FRESH_S = 1.0
"""More frequent scrapes get the same answer."""


class AskedLooks:
    """The requests for one value. Any thread may ask except the reading one: one task, or one thread, from ``begin`` to
    ``end``."""

    def __init__(self) -> None:
        self._wake: Callable[[], object] | None = None
        self._answers = threading.Condition()
        self._asked = self._answered = 0
        self._answered_at = 0.0

    def begin(self, wake: Callable[[], object]) -> None:
        """Registers ``wake``, which is called for each request; it must not block."""
        self._wake = wake

    def end(self) -> None:
        """Ends reading; releases threads that wait."""
        with self._answers:
            self._wake = None
            self._answers.notify_all()

    def ask(self) -> None:
        """Returns after a read that is not older than FRESH_S, or after ANSWER_DEADLINE_S; at once if nothing reads."""
        with self._answers:
            if self._wake is None or (self._answered and time.monotonic() - self._answered_at < FRESH_S):
                return
            self._asked += 1
            number = self._asked
            self._wake()
            self._answers.wait_for(lambda: self._answered >= number or self._wake is None, ANSWER_DEADLINE_S)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Wraps one read, and publishes its end."""
        number = self._asked
        try:
            yield
        finally:
            with self._answers:
                self._answered, self._answered_at = number, time.monotonic()
                self._answers.notify_all()
