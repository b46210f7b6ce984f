"""What has to be looked up to be shown is looked up when somebody asks for it, and not before.

A scrape comes four times a minute, and between two of them a backlog is not to be slower for it. Who asks waits a moment for the
answer, and no longer: what has to answer may be away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ANSWER_DEADLINE_S = 0.5
"""Shorter than what probes wait for an answer of ours: Kubernetes a second, unless it is told otherwise."""

FRESH_S = 1.0
"""Who asks more often is told the same again."""


class AskedLooks:
    """Those at one thing. Any thread may ask but that of who looks: one task, or one thread, from ``begin`` to ``end``."""

    def __init__(self) -> None:
        self._wake: Callable[[], object] | None = None
        self._answers = threading.Condition()
        self._asked = self._answered = 0
        self._answered_at = 0.0

    def begin(self, wake: Callable[[], object]) -> None:
        """``wake`` is called when somebody asks; it may not wait."""
        self._wake = wake

    def end(self) -> None:
        """Nobody looks any more, and nobody waits for it."""
        with self._answers:
            self._wake = None
            self._answers.notify_all()

    def ask(self) -> None:
        """Returns after a look that is not older than FRESH_S, or after ANSWER_DEADLINE_S; at once while nobody looks."""
        with self._answers:
            if self._wake is None or (self._answered and time.monotonic() - self._answered_at < FRESH_S):
                return
            self._asked += 1
            number = self._asked
            self._wake()
            self._answers.wait_for(lambda: self._answered >= number or self._wake is None, ANSWER_DEADLINE_S)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Around a look, whatever it finds."""
        number = self._asked
        try:
            yield
        finally:
            with self._answers:
                self._answered, self._answered_at = number, time.monotonic()
                self._answers.notify_all()
