"""The state of a sink for subscriptions between ``open`` and ``close``: threads, receivers, and their records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pgsluice.shared.errors import PgsluiceError
from pgsluice.worker.sinks.abilities import Reread
from pgsluice.worker.sinks.subscriptions.catching_up import CatchingUp
from pgsluice.worker.sinks.subscriptions.dispatch import Dispatch
from pgsluice.worker.sinks.subscriptions.event_blocks import EventBlocks
from pgsluice.worker.sinks.subscriptions.event_request import EventRequestSize
from pgsluice.worker.sinks.subscriptions.live_pass import LivePass
from pgsluice.worker.sinks.subscriptions.options import SubscriptionsSinkSettings
from pgsluice.worker.sinks.subscriptions.receivers import NewSubscriber, Receivers
from pgsluice.worker.sinks.subscriptions.subscriber import Subscriber
from pgsluice.worker.sinks.subscriptions.subscription_book import SubscriptionBook

_END_DEADLINE_S = 2.0


class OpenService:
    """``applied`` returns the message up to which the worker has come."""

    def __init__(self, chosen: SubscriptionsSinkSettings, new: NewSubscriber, applied: Callable[[], int]) -> None:
        size = EventRequestSize(chosen.batch_size, chosen.batch_bytes)
        self._live_dispatch = Dispatch("pgsluice-subscriptions-live", chosen.connections)
        self._behind_dispatch = Dispatch("pgsluice-subscriptions-behind", max(1, chosen.connections // 2))
        self._is_following = False
        self.blocks = EventBlocks()
        self.live = LivePass(self._live_dispatch, size, chosen.patience_s, self._serve_from_stream)
        self.catching_up = CatchingUp(self.live.lock, self._behind_dispatch, self.blocks, size, applied)
        self.receivers = Receivers(self.live.lock, new, self.live.drop, self._serve_from_stream)
        self._book: SubscriptionBook | None = None

    def begin(self, book: SubscriptionBook, applied: int, *, is_replay: bool) -> None:
        """Begins with the stored states. Raises TransientError, TerminalError."""
        try:
            subscriptions, standings = book.open()
        except BaseException:
            book.close()
            raise
        if is_replay:
            book.close()
        else:
            self._book = book
        self.receivers.begin(subscriptions, standings, applied)

    def follow(self, reread: Reread) -> None:
        """Begins to serve lagging receivers, and to check for new subscriptions."""
        self.blocks.reread = reread
        if self._book is None or self._is_following:
            return
        self._is_following = True
        self.receivers.serve_behind()
        self._book.follow(self.receivers.take, self.receivers.standings)

    def store(self) -> None:
        """Stores states, which are durable when it returns. Raises TransientError."""
        if self._book is not None:
            self._book.store(self.receivers.standings)

    def rewind(self, sequence: int) -> None:
        self.blocks.forget()
        self.receivers.rewind(sequence)

    def close(self) -> None:
        self.live.halt()
        self.catching_up.close()
        self.receivers.abort()
        self._live_dispatch.close(_END_DEADLINE_S)
        self._behind_dispatch.close(_END_DEADLINE_S)
        self.receivers.close()
        book, self._book = self._book, None
        if book is not None:
            with contextlib.suppress(PgsluiceError):
                book.store(self.receivers.standings)
            book.close()

    def _serve_from_stream(self, subscriber: Subscriber, pause_s: float = 0.0) -> None:
        if self._is_following:
            self.catching_up.schedule(subscriber, pause_s)
