"""One pass over a batch: lines are cut into requests and handed to the lanes."""

from __future__ import annotations

from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.sink import Applied, Receipt
from pgsluice.worker.sinks.webhook.deliveries import Deliveries
from pgsluice.worker.sinks.webhook.lanes import Lanes
from pgsluice.worker.sinks.webhook.placed_lines import PlacedLine, decode_sections
from pgsluice.worker.sinks.webhook.request import RequestCutter, is_barrier


class Shipment:
    """Takes the receipts of a batch in order, then ``finish``. RejectedChanges may come from either."""

    def __init__(
        self, lanes: Lanes, deliveries: Deliveries, cutter: RequestCutter, positions: BucketPositions, *, copied: bool
    ) -> None:
        deliveries.begin_pass()
        self._lanes = lanes
        self._deliveries = deliveries
        self._cutter = cutter
        self._positions = positions
        self._copied = copied
        self._ends = list(positions.announced_ends(copied=copied))

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
            self._positions.announce_end(applied.last_sequence(copied=self._copied), copied=self._copied)
        self._flush()
        self._wait_until_idle()

    def _take_line(self, lane: int, line: PlacedLine) -> None:
        if not self._deliveries.is_done(lane, line):
            full = self._cutter.add(lane, line)
            if full:
                self._lanes.send(lane, full)

    def _take_barrier(self, line: PlacedLine) -> None:
        """A single lane keeps the order by itself; several come to rest before and behind it. It goes by the first."""
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
