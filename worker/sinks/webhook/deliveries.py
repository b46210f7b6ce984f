"""What has become of the lines since the position moved last: delivered, refused, or held back.

It outlives a batch that failed: when the batch comes again, lines that were delivered are passed over, however many changes were
taken out of it meanwhile. Lanes report from their threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import orjson

from shared.errors import TerminalError
from shared.position import Position
from worker.dead_letters import RejectedChanges, Rejection
from worker.sinks.webhook.placed_lines import PlacedLine
from worker.sinks.webhook.request import change_name, is_barrier, row_of

MOST_REFUSALS = 100  # in one pass: a receiver that refuses everything is not asked change by change before the limit is looked at


class Deliveries:
    """Lines of one lane come in order."""

    def __init__(self, lanes: int) -> None:
        self._lock = threading.Lock()
        self._delivered = [(0, -1)] * lanes
        """The place up to which each lane is done, but for ``_left_out``."""
        self._left_out: set[tuple[int, int]] = set()
        self._refused_rows: set[bytes] = set()
        self._rejections: list[Rejection] = []

    def begin_pass(self) -> None:
        """A batch is looked at, for the first time or again: the worker has dealt with what was refused in the pass before."""
        self._refused_rows.clear()
        self._rejections.clear()

    def forget(self) -> None:
        """The position moved behind everything that is known here."""
        self._delivered = [(0, -1)] * len(self._delivered)
        self._left_out.clear()

    def is_done(self, lane: int, line: PlacedLine) -> bool:
        return line.place <= self._delivered[lane] and line.place not in self._left_out

    def note_delivered(self, lane: int, lines: Sequence[PlacedLine]) -> None:
        with self._lock:
            self._delivered[lane] = lines[-1].place
            self._left_out.difference_update(line.place for line in lines)

    def without_refused_rows(self, lane: int, lines: Sequence[PlacedLine]) -> Sequence[PlacedLine]:
        """``lines`` but for later changes of refused rows, which are held back. Raises RejectedChanges when that cannot be told,
        because a line concerns several rows."""
        if not self._refused_rows:
            return lines
        if any(map(is_barrier, lines)):
            self.check()
        with self._lock:
            held_back = [line for line in lines if row_of(line) in self._refused_rows]
            self._leave_out(lane, held_back)
        return [line for line in lines if line not in held_back]

    def note_refused(self, lane: int, line: PlacedLine, status: int) -> None:
        """The receiver refuses this line alone. Raises RejectedChanges when it is enough for this pass."""
        rejection = Rejection(_position(line, status), f"the webhook's receiver answered with status {status}")
        with self._lock:
            self._rejections.append(rejection)
            self._refused_rows.add(row_of(line))
            self._leave_out(lane, [line])
        if is_barrier(line) or len(self._rejections) >= MOST_REFUSALS:
            self.check()

    def check(self) -> None:
        """Raises RejectedChanges when there were any in this pass."""
        with self._lock:
            if self._rejections:
                raise RejectedChanges(sorted(self._rejections, key=lambda rejection: rejection.position))

    def _leave_out(self, lane: int, lines: Sequence[PlacedLine]) -> None:
        for line in lines:
            self._left_out.add(line.place)
            self._delivered[lane] = max(self._delivered[lane], line.place)


def _position(line: PlacedLine, status: int) -> Position:
    position = orjson.loads(line.text).get("position")
    if position is None:
        raise TerminalError(
            f"the webhook's receiver answered {change_name(line)} with status {status}",
            "copied rows and borders of transactions cannot be set aside: make the receiver accept them, start the worker again",
        )
    return Position.parse(position)
