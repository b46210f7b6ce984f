"""Connections of clients, with deadlines and a limit: the server closes one that sends a request or reads an answer too slowly.

uvicorn waits indefinitely for a head and for a body, and for a client to read its answer; it has a deadline only
between requests.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ANSWERED_CONNECTIONS = 1000
"""Connections up to which the server answers requests; with more of them open, it answers with 503."""
MOST_CONNECTIONS = 2 * ANSWERED_CONNECTIONS
RECEIVING_S = 10.0
"""Seconds that a client has for the head of a request, from its first byte or the start of the connection, and again for its
body."""
SENDING_S = 60.0
"""Seconds that the server waits with an answer while the client reads none of it."""


class BoundedConnection(H11Protocol):
    """A connection that aborts itself when one of the deadlines has passed."""

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
        """Returns nothing between two requests: uvicorn has its own deadline for that."""
        if self.conn.their_state is h11.SEND_BODY:
            return "body", self.cycle
        if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            return "head", self.cycle
        return None
