"""A client's connection that ends: who sends a request or takes an answer too slowly is cut off, as are those who are too many.

uvicorn waits for ever for a head and for a body, and for a client to take its answer; a deadline it has only between requests.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ANSWERED_CONNECTIONS = 1000
"""With more of them open, requests are answered with 503."""
MOST_CONNECTIONS = 2 * ANSWERED_CONNECTIONS
RECEIVING_S = 10.0
"""For the head of a request, from its first byte or the connection's begin, and as long again for its body."""
SENDING_S = 60.0
"""For what is to be sent while the client takes nothing."""


class BoundedConnection(H11Protocol):
    """Aborts itself when one of the deadlines has passed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._awaited: tuple[str, object] | None = None
        """The part of a request that the client owes, and which request that is after."""
        self._receiving: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as H11Protocol has it
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._receiving, self._sending):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending = self.loop.call_later(SENDING_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()

    def _watch(self) -> None:
        """A deadline begins when another part is owed, and not with each byte of it."""
        awaited = self._owed()
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if self._receiving is not None:
            self._receiving.cancel()
        self._receiving = None if awaited is None else self.loop.call_later(RECEIVING_S, self.transport.abort)

    def _owed(self) -> tuple[str, object] | None:
        """Nothing between two requests: for that there is uvicorn's own deadline."""
        if self.conn.their_state is h11.SEND_BODY:
            return "body", self.cycle
        if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            return "head", self.cycle
        return None
