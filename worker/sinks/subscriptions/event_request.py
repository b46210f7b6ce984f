"""Requests to one receiver: which events travel together, the body, its id.

A request holds the events of whole messages, so that a message's sequence is a receiver's position. Only a message with
more events than a request can contain is cut. The body is a JSON array. The id names the subscription, the first and
the last event, and a digest of the body: the same request has the same id whenever it is sent again. After a crash
events can come again cut into other requests: the identity of an event is its ``position``, with ``schema`` and
``table``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pgsluice.worker.sinks.lines.line_fields import line_fields

_DIGEST_LETTERS = 16


class EventRequest(NamedTuple):
    """``through`` is how far the receiver is when it accepted this."""

    texts: Sequence[bytes]
    through: int

    @property
    def body(self) -> bytes:
        return b"[" + b",".join(self.texts) + b"]"

    def identify(self, group: str, subscription: str, body: bytes) -> str:
        """Returns ``orders/5f0c…/16/B374D848:3-16/B374D848:9/1f0c…``: no full stop, which separates what is signed."""
        first, last = (line_fields(text)["position"] for text in (self.texts[0], self.texts[-1]))
        span = first if first == last else f"{first}-{last}"
        digest = hashlib.sha256(body).hexdigest()[:_DIGEST_LETTERS]
        return f"{group.replace('.', '-')}/{subscription}/{span}/{digest}"


class EventRequestSize(NamedTuple):
    """Most events and bytes of one request; an event that is larger goes alone."""

    events: int
    bytes: int


class OpenRequest:
    """Gathers the events of messages for a single receiver, which has everything up to ``through``."""

    def __init__(self, size: EventRequestSize, through: int) -> None:
        self._size = size
        self._through = through
        self._texts: list[bytes] = []
        self._bytes = 0

    def add(self, sequence: int, texts: Sequence[bytes]) -> Iterator[EventRequest]:
        """Yields the requests that are full now. ``texts`` are all the events of that message that the receiver wants."""
        size = sum(map(len, texts))
        if self._texts and (len(self._texts) + len(texts) > self._size.events or self._bytes + size > self._size.bytes):
            yield from self.flush()
        for text in texts:
            if self._texts and (len(self._texts) == self._size.events or self._bytes + len(text) > self._size.bytes):
                yield EventRequest(self._take(), self._through)
            self._texts.append(text)
            self._bytes += len(text)
        self._through = sequence

    @property
    def open_bytes(self) -> int:
        """Size of events that are not in a request yet."""
        return self._bytes

    def flush(self) -> Iterator[EventRequest]:
        """Yields the rest as a request."""
        if self._texts:
            yield EventRequest(self._take(), self._through)

    def _take(self) -> list[bytes]:
        texts, self._texts, self._bytes = self._texts, [], 0
        return texts
