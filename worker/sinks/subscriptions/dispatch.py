"""Threads for blocking work: a limited number, created when there is work and ended when there was none for a while.

Work that takes too long can be left to its thread: then another thread may take that one's place, so that a receiver
that does not answer blocks only its own turn.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from pgsluice.shared import telemetry
from pgsluice.shared.process.defect import unexpected

_IDLE_S = 10.0

Work = Callable[[], None]

log = telemetry.logger(__name__)


class Dispatch:
    """Work begins in the sequence of ``put``. At most ``threads`` are at work, in addition to left ones."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._most = threads
        self._changed = threading.Condition()
        self._ready: deque[Work] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._left = 0
        self._is_closed = False

    def put(self, work: Work) -> None:
        """Queues work, unless this is closed. Raises RuntimeError, and has not taken ``work``, when no thread can be
        started and none exists."""
        with self._changed:
            if self._is_closed:
                return
            self._ready.append(work)
            try:
                self._hire()
            except RuntimeError:
                if not self._threads:
                    self._ready.pop()
                    raise
            self._changed.notify()

    def leave(self) -> None:
        """Leaves one of the threads to work that nothing waits for any more; that work calls ``come_back``."""
        with self._changed:
            self._left += 1
            with contextlib.suppress(RuntimeError):  # existing threads continue
                self._hire()

    def come_back(self) -> None:
        with self._changed:
            self._left -= 1

    def close(self, timeout_s: float) -> None:
        """Drops queued work; waits for work under way."""
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _hire(self) -> None:
        if len(self._ready) > self._idle and len(self._threads) - self._left < self._most:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._threads.add(thread)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  a thread must not die alone, and the text may quote a row
                log.error("a delivery ended in a defect", reason=str(unexpected(error, "a delivery")))

    def _next(self) -> Work | None:
        """Returns None when this thread is not needed any more."""
        with self._changed:
            while not self._ready and not self._is_closed:
                self._idle += 1
                is_news = self._changed.wait(_IDLE_S)
                self._idle -= 1
                if not is_news and not self._ready:
                    break
            if self._ready and not self._is_closed and len(self._threads) - self._left <= self._most:
                return self._ready.popleft()
            self._threads.discard(threading.current_thread())
            return None
