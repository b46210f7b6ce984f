"""Lanes: each carries its requests one after the other, all of them at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pgsluice.worker.sinks.webhook.placed_lines import PlacedLine
from pgsluice.worker.sinks.webhook.sender import Courier, Pause

WAITING_REQUESTS = 2  # of each lane, behind the one under way: enough to keep it busy, and all that is held in memory


class Lanes:
    """For one thread. A lane that fails stops all of them; the call that notices it raises the error that was first."""

    def __init__(self, couriers: Sequence[Courier], pause: Pause) -> None:
        self._couriers = couriers
        self._pause = pause
        self._threads = [ThreadPoolExecutor(1, f"webhook-{lane}") for lane in range(len(couriers))]
        self._requests: list[deque[Future[None]]] = [deque() for _ in couriers]
        self._lock = threading.Lock()
        self._first_error: BaseException | None = None

    @property
    def count(self) -> int:
        return len(self._couriers)

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

    def give_up(self) -> None:
        """Ends what is waiting, and what waits for a better moment; returns when nothing is under way any more."""
        self._pause.halted.set()
        for requests in self._requests:
            while requests:
                requests.popleft().exception()
        self._first_error = None
        self._pause.halted.clear()

    def break_off(self) -> None:
        """From any thread, and for good: requests under way fail now, and no other is sent."""
        self._pause.halted.set()
        for courier in self._couriers:
            courier.abort()

    def close(self) -> None:
        self.break_off()
        for thread in self._threads:
            thread.shutdown(wait=True)
        for courier in self._couriers:
            courier.close()

    def _take_result(self, requests: deque[Future[None]]) -> None:
        error = requests.popleft().exception()
        if error is not None:
            raise self._first_error or error

    def _deliver(self, lane: int, lines: Sequence[PlacedLine]) -> None:
        try:
            self._pause.wait()
            self._couriers[lane].deliver(lines)
        except BaseException as error:
            with self._lock:
                self._first_error = self._first_error or error
            self._pause.halted.set()
            raise
