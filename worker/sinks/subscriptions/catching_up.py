"""Serves receivers that lag behind the worker: reads the stream again for each, from its position.

A few threads take turns at one request for each receiver. One that fails waits longer after each time. One that has
caught up with the worker waits there until it can join it again, or until the worker has moved on.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, assert_never

from pgsluice.shared import telemetry
from pgsluice.shared.errors import MissingMessagesError, PgsluiceError, TransientError
from pgsluice.shared.process.defect import unexpected
from pgsluice.worker.sinks.subscriptions.dispatch import Dispatch
from pgsluice.worker.sinks.subscriptions.event_blocks import EventBlock, EventBlocks
from pgsluice.worker.sinks.subscriptions.event_index import share_of
from pgsluice.worker.sinks.subscriptions.event_request import EventRequest, EventRequestSize, OpenRequest
from pgsluice.worker.sinks.subscriptions.event_writer import Unseen, Unworkable
from pgsluice.worker.sinks.subscriptions.subscriber import Standing, Subscriber

_READING_PAUSE_S = 1.0
_HARD_READING_PAUSE_S = 30.0
"""Pause after a reading error that will stop the worker itself, or is outdated."""

log = telemetry.logger(__name__)


class _Read(NamedTuple):
    """The requests of messages up to ``through``. ``end`` is why the one after it has none."""

    requests: list[EventRequest]
    through: int
    end: Unworkable | Unseen | None


class CatchingUp:
    """``lock`` is the live pass's, which guards all subscribers; ``applied`` returns the message up to which the worker
    has come."""

    def __init__(
        self,
        lock: threading.Condition,
        dispatch: Dispatch,
        blocks: EventBlocks,
        size: EventRequestSize,
        applied: Callable[[], int],
    ) -> None:
        self.accepted = 0
        self.failed = 0
        self.events = 0
        self._lock = lock
        self._dispatch = dispatch
        self._blocks = blocks
        self._size = size
        self._applied = applied
        self._timer = Timer(self._put)

    def schedule(self, subscriber: Subscriber, pause_s: float = 0.0) -> None:
        """Queues a subscriber for its turn, once the pause is over; ignores one that is queued or not BEHIND. The lock
        is held."""
        if subscriber.is_scheduled or subscriber.standing is not Standing.BEHIND or subscriber.sent_at is not None:
            return
        subscriber.is_scheduled = True
        try:
            if not pause_s:
                self._put(subscriber)
        except RuntimeError:  # no thread can be started now
            pause_s = _READING_PAUSE_S
        if pause_s:
            self._timer.after(pause_s, subscriber)

    def close(self) -> None:
        self._timer.close()

    def _put(self, subscriber: Subscriber) -> None:
        self._dispatch.put(lambda: self._take_turn(subscriber))

    def _take_turn(self, subscriber: Subscriber) -> None:
        """Schedules the next turn whatever ends this one: without it, a receiver would hold the stream for good."""
        try:
            self._turn(subscriber)
        except Exception as error:  # noqa: BLE001  the text may quote a row
            log.error("a subscription's turn ended in a defect", reason=str(unexpected(error, "a turn")))
            with self._lock:
                subscriber.sent_at, subscriber.is_scheduled = None, False
                self.schedule(subscriber, _HARD_READING_PAUSE_S)

    def _turn(self, subscriber: Subscriber) -> None:
        request = None
        with self._lock:
            if subscriber.standing is Standing.BEHIND and subscriber.pending:
                request = subscriber.begin_sending()
        if request is not None:
            self._send(subscriber, request)
            return
        pause_s = self._read(subscriber) if subscriber.standing is Standing.BEHIND else 0.0
        with self._lock:
            subscriber.is_scheduled = False
            if pause_s or subscriber.pending or subscriber.sequence < self._applied():
                self.schedule(subscriber, pause_s)

    def _send(self, subscriber: Subscriber, request: EventRequest) -> None:
        error = subscriber.post(request)
        with self._lock:
            subscriber.sent_at, subscriber.is_scheduled = None, False
            pause_s = 0.0
            if error is None:
                self.accepted += 1
                self.events += len(request.texts)
                subscriber.note_accepted(request)
            else:
                self.failed += 1
                pause_s = subscriber.note_failure(error)
            self.schedule(subscriber, pause_s)

    def _read(self, subscriber: Subscriber) -> float:
        """Reads the requests of the next messages. Returns how long to wait when they cannot be read."""
        begin, applied = subscriber.sequence, self._applied()
        if begin >= applied:
            return 0.0
        try:
            block = self._blocks.after(begin, applied, subscriber.view)
        except MissingMessagesError as error:
            with self._lock:
                subscriber.note_missed(min(applied, max(begin + 1, error.next_sequence - 1)))
            return 0.0
        except TransientError:
            return _READING_PAUSE_S
        except PgsluiceError as error:
            log.warning("the stream cannot be read again for a subscription", reason=str(error))
            return _HARD_READING_PAUSE_S
        read = self._requests(subscriber, block, begin)
        with self._lock:
            if subscriber.standing is Standing.BEHIND and subscriber.sequence == begin:
                self._note_read(subscriber, read)
        return 0.0

    def _requests(self, subscriber: Subscriber, block: EventBlock, begin: int) -> _Read:
        open_request, requests, through = OpenRequest(self._size, begin), list[EventRequest](), begin
        end: Unworkable | Unseen | None = None
        for message in block.messages:
            if message.sequence <= begin:
                continue
            match share_of(subscriber, message):
                case list(texts):
                    requests += open_request.add(message.sequence, texts)
                    through = message.sequence
                case Unworkable() | Unseen() as end:
                    break
                case unreachable:
                    assert_never(unreachable)
        requests += open_request.flush()
        return _Read(requests, block.through if end is None else through, end)

    def _note_read(self, subscriber: Subscriber, read: _Read) -> None:
        """Notes a read. Requests before a message that its rules cannot be applied to are delivered first: that is read
        again then."""
        if not read.requests:
            subscriber.sequence = read.through
            match read.end:
                case Unworkable(reason):
                    subscriber.note_unworkable(reason)
                case Unseen() | None:
                    pass
                case unreachable:
                    assert_never(unreachable)
            return
        *requests, last = read.requests
        for request in (*requests, last._replace(through=read.through)):
            subscriber.queue(request)


class Timer:
    """Calls ``due`` with the argument of ``after``, when it is time, on a separate thread; again when ``due`` fails."""

    def __init__(self, due: Callable[[Subscriber], None]) -> None:
        self._due = due
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Subscriber]] = []
        self._numbers = itertools.count()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="pgsluice-subscription-timer", daemon=True)
        self._thread.start()

    def after(self, pause_s: float, subscriber: Subscriber) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (time.monotonic() + pause_s, next(self._numbers), subscriber))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now = time.monotonic()
                if not self._waiting or self._waiting[0][0] > now:
                    self._changed.wait(self._waiting[0][0] - now if self._waiting else None)
                    continue
                subscriber = heapq.heappop(self._waiting)[2]
            try:
                self._due(subscriber)
            except Exception as error:  # noqa: BLE001  a thread must not die alone
                log.error("a subscription's turn could not begin", reason=str(unexpected(error, "a turn")))
                self.after(_READING_PAUSE_S, subscriber)
