"""The size of requests: smaller after one that was too much for the server, slowly larger while it answers in time.

Sent again unchanged, a request that takes the server too long would take it too long each time. So the learned size
outlives the batch.
"""

from __future__ import annotations

GROWTH = 1.05
"""Growth with each request that was answered soon. A size that is too large again costs a request every fourteen."""
SOON, LATE = 1 / 4, 1 / 2
"""Shares of a request's time limit: faster ones may grow, slower ones must shrink."""


class RequestSize:
    """The size of requests with at most ``most_items`` and ``most_bytes``, each with ``timeout_s``. For a single
    thread."""

    def __init__(self, most_items: int, most_bytes: int = 1 << 62, *, timeout_s: float) -> None:
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s
        self._share = 1.0

    @property
    def items(self) -> int:
        """The most items of one request."""
        return max(1, int(self._share * self._most_items))

    @property
    def bytes(self) -> float:
        """The most bytes of one request, unless it holds a single item."""
        return self._share * self._most_bytes

    def note_refusal(self, items: int, size: int = 0) -> None:
        """Notes that a request of so many items and bytes was too much: the next ones have half of it."""
        self._share = max(1 / self._most_items, min(self._share, self._share_of(items, size) / 2))

    def note_answer(self, seconds: float, items: int, size: int = 0) -> None:
        """Notes a request's answer time. One that was much smaller than allowed is no evidence for larger ones."""
        if seconds > LATE * self._timeout_s:
            self.note_refusal(items, size)
        elif seconds < SOON * self._timeout_s and self._share_of(items, size) > self._share / 2:
            self._share = min(1.0, self._share * GROWTH)

    def _share_of(self, items: int, size: int) -> float:
        return max(items / self._most_items, size / self._most_bytes)
