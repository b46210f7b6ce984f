"""The one pass through the stream for all receivers that keep up.

A batch is handed to all of them at once; it is done when each has accepted its events, or has left the pass. A receiver
leaves when it fails, or when a request takes longer than the others should wait. It gets unaccepted events from the
stream (``catching_up``), so none are kept, and the memory for a receiver is limited: the batch waits while it has
enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from pgsluice.shared.errors import Cause, TransientError
from pgsluice.worker.sinks.subscriptions.dispatch import Dispatch
from pgsluice.worker.sinks.subscriptions.event_index import EventIndex
from pgsluice.worker.sinks.subscriptions.event_request import EventRequest, EventRequestSize, OpenRequest
from pgsluice.worker.sinks.subscriptions.event_writer import MessageEvents
from pgsluice.worker.sinks.subscriptions.subscriber import Standing, Subscriber

MOST_WAITING_EVENTS = 2000  # of one receiver: all receivers share the same text, so this limits the lists
MOST_OWN_BYTES = 64 * 1024 * 1024
"""Limit of memory for waiting texts that receivers' own rules made."""
_LOOK_INTERVAL_S = 0.05

Left = Callable[[Subscriber, float], None]
"""Called with a subscriber that left the pass, and how long to let it rest; with the lock held."""


class LivePass:
    """``begin``, ``take`` and ``finish`` are called by a single thread, batch by batch. ``lock`` guards all
    subscribers."""

    def __init__(self, dispatch: Dispatch, size: EventRequestSize, patience_s: float, on_left: Left) -> None:
        self.lock = threading.Condition()
        self.accepted = 0
        self.failed = 0
        self.events = 0
        self._dispatch = dispatch
        self._size = size
        self._patience_s = patience_s
        self._on_left = on_left
        self._members: Sequence[Subscriber] = ()
        self._index = EventIndex(())
        self._open: dict[Subscriber, OpenRequest] = {}
        self._busy: set[Subscriber] = set()
        self._is_halted = False

    def begin(self, members: Sequence[Subscriber]) -> None:
        """Begins a batch. ``members`` are LIVE."""
        if members != self._members:
            self._members, self._index = members, EventIndex(members)
        self._open = {}

    def take(self, messages: Iterable[MessageEvents]) -> None:
        """Raises TransientError when halted."""
        for message in messages:
            for subscriber, share in self._index.shares(message):
                if subscriber.standing is not Standing.LIVE or message.sequence <= subscriber.sequence:
                    continue
                if isinstance(share, list):
                    self._add(subscriber, message.sequence, share)
                else:
                    self._take_out(subscriber)
            if message.views:
                self._bound_own_bytes()

    def finish(self, sequence: int) -> None:
        """Returns when every receiver has accepted the batch or left. Who is still a member is at ``sequence``."""
        self._flush()
        with self.lock:
            self._wait(lambda: not self._busy)
            for subscriber in self._members:
                if subscriber.standing is Standing.LIVE:
                    subscriber.sequence = max(subscriber.sequence, sequence)

    def abort(self) -> None:
        """Aborts the batch, which comes again: drops unsent events. Accepted ones are skipped then."""
        with self.lock:
            self._open = {}
            for subscriber in list(self._busy):
                if subscriber.sent_at is None:
                    subscriber.drop_pending()
                    self._busy.discard(subscriber)
                else:
                    while len(subscriber.pending) > 1:
                        subscriber.drop_last()

    @property
    def left(self) -> int:
        """Number of the batch's members that have left it."""
        return sum(member.standing is not Standing.LIVE for member in self._members)

    def halt(self) -> None:
        """Halts, from any thread, and for good."""
        with self.lock:
            self._is_halted = True
            self.lock.notify_all()

    def drop(self, subscriber: Subscriber) -> None:
        """Removes a subscriber from the pass; the lock is held, and its standing is set already."""
        if subscriber in self._busy and subscriber.sent_at is not None:
            self._dispatch.leave()
        self._busy.discard(subscriber)
        self.lock.notify_all()

    def _add(self, subscriber: Subscriber, sequence: int, texts: list[bytes]) -> None:
        open_request = self._open.get(subscriber)
        if open_request is None:
            open_request = self._open[subscriber] = OpenRequest(self._size, subscriber.sequence)
        for request in open_request.add(sequence, texts):
            self._queue(subscriber, request)

    def _take_out(self, subscriber: Subscriber) -> None:
        """Takes a subscriber out of the pass: its view of a message is not available, or failed, so the stream is read
        for it."""
        with self.lock:
            if subscriber.standing is Standing.LIVE:
                subscriber.leave_pass()
                self._drop_from_pass(subscriber, 0.0)

    def _flush(self) -> None:
        """Queues open requests."""
        for subscriber, open_request in self._open.items():
            for request in open_request.flush():
                self._queue(subscriber, request)

    def _bound_own_bytes(self) -> None:
        own = sum(open_request.open_bytes for subscriber, open_request in self._open.items() if subscriber.view is not None)
        with self.lock:
            if own + self._queued_own_bytes() < MOST_OWN_BYTES:
                return
        self._flush()
        with self.lock:
            self._wait(lambda: not self._busy or self._queued_own_bytes() < MOST_OWN_BYTES)

    def _queued_own_bytes(self) -> int:
        return sum(subscriber.pending_own_bytes for subscriber in self._busy)

    def _queue(self, subscriber: Subscriber, request: EventRequest) -> None:
        with self.lock:
            self._wait(lambda: subscriber.pending_texts < MOST_WAITING_EVENTS or subscriber not in self._busy)
            if subscriber.standing is not Standing.LIVE:
                return
            subscriber.queue(request)
            if subscriber not in self._busy:
                self._busy.add(subscriber)
                self._dispatch.put(lambda: self._deliver(subscriber))

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Has those leave that the others have waited for long enough."""
        while not is_over():
            if self._is_halted:
                raise TransientError("requests were cancelled", "they are sent again with their batch", Cause.TARGET)
            border = time.monotonic() - self._patience_s
            for subscriber in [each for each in self._busy if each.sent_at is not None and each.sent_at < border]:
                self._leave(subscriber, 0.0)
            if not is_over():
                self.lock.wait(_LOOK_INTERVAL_S)

    def _leave(self, subscriber: Subscriber, pause_s: float) -> None:
        if subscriber.standing is Standing.LIVE:
            subscriber.leave_and_rest()
        self._drop_from_pass(subscriber, pause_s)

    def _drop_from_pass(self, subscriber: Subscriber, pause_s: float) -> None:
        self.drop(subscriber)
        if subscriber.sent_at is None:
            self._on_left(subscriber, pause_s)

    def _deliver(self, subscriber: Subscriber) -> None:
        """Sends the first request that waits, in a separate thread."""
        with self.lock:
            if subscriber.sent_at is not None:
                return  # another turn of its is under way, from before the batch was aborted
            if subscriber.standing is not Standing.LIVE or not subscriber.pending or self._is_halted:
                self._busy.discard(subscriber)
                self.lock.notify_all()
                return
            request = subscriber.begin_sending()
        error = subscriber.post(request)
        with self.lock:
            subscriber.sent_at = None
            is_waited_for = subscriber in self._busy
            pause_s = 0.0
            if error is None:
                self._note_accepted(subscriber, request)
            else:
                self.failed += 1
                pause_s = subscriber.note_failure(error)
            if not is_waited_for:
                self._dispatch.come_back()
                self._on_left(subscriber, pause_s)
            elif error is not None:
                self._leave(subscriber, pause_s)
            elif subscriber.pending:
                self._dispatch.put(lambda: self._deliver(subscriber))
            else:
                self._busy.discard(subscriber)
            self.lock.notify_all()

    def _note_accepted(self, subscriber: Subscriber, request: EventRequest) -> None:
        self.accepted += 1
        self.events += len(request.texts)
        subscriber.note_accepted(request)
