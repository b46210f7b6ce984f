"""Events of messages that the live pass has passed, read from the stream again.

Messages are read in blocks that begin at the same places for all receivers, and the newest blocks are kept: receivers
with about the same lag, and the same view, share them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from pgsluice.worker.sinks.abilities import Reread
from pgsluice.worker.sinks.subscriptions.event_writer import EventWriter, MessageEvents, decode_events
from pgsluice.worker.sinks.subscriptions.subscription_rules import EventView

BLOCK_MESSAGES = 32
KEPT_BYTES = 32 * 1024 * 1024
READERS = 2


class EventBlock(NamedTuple):
    """All events of the messages that follow the one asked for, up to ``through``."""

    messages: Sequence[MessageEvents]
    through: int
    bytes: int


_Place = tuple[int, int, EventView | None]
"""The first and the last message of a block, and who sees it."""


class EventBlocks:
    """Any thread may call; READERS of them read at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Place, EventBlock] = OrderedDict()
        self._bytes = 0
        self._readers = threading.Semaphore(READERS)
        self.reread: Reread | None = None
        self.messages_read = 0

    def after(self, sequence: int, last: int, view: EventView | None) -> EventBlock:
        """Returns the block after message ``sequence``, up to ``last`` at most, with the common events and those of
        ``view``. Raises MissingMessagesError, TransientError, and what reading raises. May return messages that begin
        earlier."""
        first = sequence // BLOCK_MESSAGES * BLOCK_MESSAGES + 1
        wanted = first, min(last, first + BLOCK_MESSAGES - 1), view
        with self._readers:
            block = self._find(wanted)
            if block is None:
                block = self._read(max(first, sequence + 1), wanted[1], view)
                if sequence < first:
                    self._keep(wanted, block)
            return block

    def forget(self) -> None:
        """Forgets blocks when the stream is numbered again."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _read(self, first: int, last: int, view: EventView | None) -> EventBlock:
        assert self.reread is not None, "the worker gives it before its first batch"
        messages: list[MessageEvents] = []
        through, size = last, 0
        for body, covered in self.reread(EventWriter(() if view is None else (view,)), first, last):
            messages += decode_events(body)
            size += len(body)
            through = max(through, covered)
        self.messages_read += last - first + 1
        return EventBlock(messages, through, size)

    def _find(self, wanted: _Place) -> EventBlock | None:
        with self._lock:
            block = self._kept.get(wanted)
            if block is not None:
                self._kept.move_to_end(wanted)
            return block

    def _keep(self, wanted: _Place, block: EventBlock) -> None:
        with self._lock:
            if wanted not in self._kept:
                self._kept[wanted] = block
                self._bytes += block.bytes
            while self._bytes > KEPT_BYTES:
                self._bytes -= self._kept.popitem(last=False)[1].bytes
