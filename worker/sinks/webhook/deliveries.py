"""The results of lines since the position moved last: delivered, refused, or held back.

It outlives a batch that failed: when the batch comes again, delivered lines are skipped, however many changes were
taken out of it meanwhile. Lanes report from their threads.

A refused line is a dead letter where the receiver refuses single rows, by the rule of ``dead_letters.refusals``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.position import Position
from pgsluice.worker.dead_letters.refusals import MOST_REFUSALS, Refusals
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.sinks.webhook.placed_lines import CHANGES, PARTS, PlacedLine, read_line
from pgsluice.worker.sinks.webhook.request import is_barrier

FEW_REFUSALS = 10
"""Number of refusals of OF_PLACE in one pass after which the receiver may be judged at fault; after MOST_REFUSALS if
there are others among them. So a receiver that refuses everything is not tried change by change."""
OF_PLACE = frozenset({401, 402, 403, 404, 405, 407, 410, 421, 426, 451})
"""Statuses that speak of the URL or of who sends, not of what is sent."""


Place = tuple[int, int]


class Deliveries:
    """Lines of one lane come in order."""

    def __init__(self, lanes: int) -> None:
        self._lock = threading.Lock()
        self._delivered: list[dict[int, Place]] = [{} for _ in range(lanes)]
        """The place up to which each track of each lane is done, except for ``_left_out``."""
        self._left_out: set[tuple[int, Place]] = set()
        self._refused_rows: set[bytes] = set()
        self._rejections: dict[Position, Rejection] = {}
        self._refusals = Refusals()

    def begin_pass(self) -> None:
        """Begins a pass over a batch, for the first time or again: the worker has dealt with what was refused in the
        pass before."""
        self._refused_rows.clear()
        self._rejections.clear()
        self._refusals.begin_pass()

    def forget(self) -> None:
        """Forgets everything after the position moved past it."""
        self._left_out.clear()
        self._refusals.begin_batch()
        for tracks in self._delivered:
            tracks.clear()

    def is_done(self, lane: int, line: PlacedLine) -> bool:
        done = self._delivered[lane].get(line.track)
        return done is not None and line.place <= done and (line.track, line.place) not in self._left_out

    def note_delivered(self, lane: int, lines: Sequence[PlacedLine]) -> None:
        with self._lock:
            self._refusals.note_taken()
            self._reach(lane, lines)
            self._left_out.difference_update((line.track, line.place) for line in lines)

    def without_refused_rows(self, lane: int, lines: Sequence[PlacedLine]) -> Sequence[PlacedLine]:
        """Returns ``lines`` without later changes of refused rows, which are held back. Raises RejectedChanges when
        that is undecidable, because a line concerns several rows."""
        if not self._refused_rows:
            return lines
        if any(map(is_barrier, lines)):
            self.check()
        with self._lock:
            going: list[PlacedLine] = []
            held_back: list[PlacedLine] = []
            for line in lines:
                (held_back if read_line(line.text).row in self._refused_rows else going).append(line)
            self._leave_out(lane, held_back)
        return going

    def note_refused(self, lane: int, line: PlacedLine, status: int) -> None:
        """Notes that the receiver refuses this line alone. Raises as ``check`` when it is enough for this pass."""
        rejection = Rejection(_position(line, status), f"the webhook's receiver answered with status {status}")
        with self._lock:
            self._refusals.note_refused(f"status {status}", speaks_of_place=status in OF_PLACE)
            self._rejections[rejection.position] = rejection
            self._leave_out(lane, [line])
            if line.track == CHANGES:
                self._refused_rows.add(read_line(line.text).row)
        refusals = self._refusals
        is_enough = refusals.count >= MOST_REFUSALS or (refusals.count >= FEW_REFUSALS and refusals.is_place_at_fault)
        if is_barrier(line) or is_enough:
            self.check()

    def check(self) -> None:
        """Raises RejectedChanges when there were any in this pass; TransientError when the receiver refuses everything."""
        with self._lock:
            if not self._rejections:
                return
            self._refusals.check(
                "the webhook's receiver",
                "check webhook-url, the worker's credentials and the receiver; if it refuses single rows by that"
                " status, have it answer 422",
            )
            raise RejectedChanges([self._rejections[position] for position in sorted(self._rejections)])

    def _leave_out(self, lane: int, lines: Sequence[PlacedLine]) -> None:
        self._left_out.update((line.track, line.place) for line in lines)
        self._reach(lane, lines)

    def _reach(self, lane: int, lines: Sequence[PlacedLine]) -> None:
        """Notes delivered lines. A left-out line can come after later ones: those stay done."""
        tracks = self._delivered[lane]
        for line in lines:
            tracks[line.track] = max(line.place, tracks.get(line.track, line.place))


def _position(line: PlacedLine, status: int) -> Position:
    facts = read_line(line.text)
    if facts.position:
        return Position.parse(facts.position)
    if facts.operation == "READ":
        return copied_position(line.sequence, line.number >> PARTS)
    raise TerminalError(
        f"the webhook's receiver answered {facts.operation} with status {status}",
        "only changes and copied rows can be set aside: make the receiver accept it, start the worker again",
    )
