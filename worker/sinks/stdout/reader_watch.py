"""Reports the reader of standard output to the process's pulse: that it takes lines, or that it is waited for.

A write returns when the reader has taken the text, however long that takes. The writing thread is blocked meanwhile, so
another one reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.process.pulse import Pulse

PATIENCE_S = 2.0
"""A reader that is slow with each line is not reported as waited for."""


class ReaderWatch:
    """One thread writes; any may ``tell``. ``pulse`` is the process's, or an unused one."""

    def __init__(self) -> None:
        self.pulse = Pulse()
        self._lock = threading.Lock()
        self._since: float | None = None
        """Time of the last progress, by the monotonic clock; None while nothing is written."""
        self._is_told = False

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._since = None
                self._note_taken()

    def taken(self) -> None:
        """Notes that the reader has taken some of what is being written."""
        with self._lock:
            self._since = time.monotonic()
            self._note_taken()

    def tell(self) -> None:
        """Reports a long wait; call it periodically."""
        with self._lock:
            if self._since is not None and time.monotonic() - self._since >= PATIENCE_S:
                fact = "the reader of standard output takes no more lines"
                self.pulse.waits(TransientError(fact, "it is waited for: see why it does not read", Cause.TARGET))
                self._is_told = True

    def _note_taken(self) -> None:
        if self._is_told:
            self.pulse.progressed()
            self._is_told = False
        else:
            self.pulse.moved()
