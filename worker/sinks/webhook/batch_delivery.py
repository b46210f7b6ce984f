"""Delivering a batch: its lines are cut into requests and handed to lanes.

A lane carries its requests in order, one after the other; all lanes work at the same time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.sink import Applied, Lane, Receipt
from pgsluice.worker.sinks.webhook.deliveries import Deliveries
from pgsluice.worker.sinks.webhook.lane_waits import LaneWaits
from pgsluice.worker.sinks.webhook.placed_lines import PlacedLine, decode_sections
from pgsluice.worker.sinks.webhook.request import RequestCutter, is_barrier
from pgsluice.worker.sinks.webhook.sender import Pause, RequestSender

WAITING_REQUESTS = 2  # of each lane, after the one under way: enough to keep it busy, and all that is held in memory


class Lanes:
    """Use in a single thread. A lane that fails stops all of them; the call that notices it raises the error that was
    first."""

    def __init__(self, senders: Sequence[RequestSender], pause: Pause, waits: LaneWaits) -> None:
        self._senders = senders
        self._pause = pause
        self._waits = waits
        self._threads = [ThreadPoolExecutor(1, f"webhook-{lane}") for lane in range(len(senders))]
        self._requests: list[deque[Future[None]]] = [deque() for _ in senders]
        self._lock = threading.Lock()
        self._first_error: BaseException | None = None

    @property
    def count(self) -> int:
        return len(self._senders)

    def send(self, lane: int, lines: Sequence[PlacedLine]) -> None:
        """Hands a request over; waits while its lane has enough of them."""
        requests = self._requests[lane]
        while len(requests) > WAITING_REQUESTS:
            self._take_result(requests)
        requests.append(self._threads[lane].submit(self._deliver, lane, lines))

    def wait_until_idle(self) -> None:
        for requests in self._requests:
            while requests:
                self._take_result(requests)

    def abort(self) -> None:
        """Ends what is waiting, and what waits for a better moment; returns when nothing is under way any more."""
        self._pause.halted.set()
        for requests in self._requests:
            while requests:
                requests.popleft().exception()
        self._first_error = None
        self._waits.clear()
        self._pause.halted.clear()

    def break_off(self) -> None:
        """Breaks off from any thread, and for good: requests under way fail now, and no other is sent."""
        self._pause.halted.set()
        for sender in self._senders:
            sender.abort()

    def close(self) -> None:
        self.break_off()
        for thread in self._threads:
            thread.shutdown(wait=True)
        for sender in self._senders:
            sender.close()

    def _take_result(self, requests: deque[Future[None]]) -> None:
        self._waits.tell()
        error = requests.popleft().exception()
        if error is not None:
            raise self._first_error or error

    def _deliver(self, lane: int, lines: Sequence[PlacedLine]) -> None:
        try:
            self._pause.wait()
            self._senders[lane].deliver(lines)
        except BaseException as error:
            with self._lock:
                self._first_error = self._first_error or error
            self._pause.halted.set()
            raise


class BatchDelivery:
    """Takes the receipts of a batch in order, then ``finish``. Either can raise RejectedChanges."""

    def __init__(
        self, lanes: Lanes, deliveries: Deliveries, cutter: RequestCutter, positions: BucketPositions, lane: Lane
    ) -> None:
        deliveries.begin_pass()
        self._lanes = lanes
        self._deliveries = deliveries
        self._cutter = cutter
        self._positions = positions
        self._lane = lane
        self._ends = list(positions.announced_ends(lane))

    def take(self, receipt: Receipt) -> None:
        for line in decode_sections(receipt.body):
            while self._ends and line.sequence > self._ends[0]:
                del self._ends[0]
                self._flush()
            if is_barrier(line):
                self._take_barrier(line)
            else:
                self._take_line(line.lane, line)

    def finish(self, applied: Applied) -> None:
        """Returns when everything is delivered. ``applied`` is the batch's end."""
        if not self._cutter.is_empty:
            self._positions.announce_end(applied.sequence_in(self._lane), self._lane)
        self._flush()
        self._wait_until_idle()

    def _take_line(self, lane: int, line: PlacedLine) -> None:
        if not self._deliveries.is_done(lane, line):
            full = self._cutter.add(lane, line)
            if full:
                self._lanes.send(lane, full)

    def _take_barrier(self, line: PlacedLine) -> None:
        """Delivers a barrier, by the first lane. A single lane keeps the sequence anyway; several come to rest before
        and after it."""
        if self._lanes.count == 1 or self._deliveries.is_done(0, line):
            self._take_line(0, line)
            return
        self._flush()
        self._wait_until_idle()
        self._lanes.send(0, [line])
        self._wait_until_idle()

    def _flush(self) -> None:
        for lane, lines in self._cutter.flush():
            self._lanes.send(lane, lines)

    def _wait_until_idle(self) -> None:
        self._lanes.wait_until_idle()
        self._deliveries.check()
