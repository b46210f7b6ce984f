"""The ranges of a run, read into the stream; ranges with rows on which the query fails are cut, down to the rows.

A row that cannot be read alone becomes a dead letter, and goes into no target.

Each time that ranges are cut the record gets what is left to be read, under new numbers, before any of it is: so a run
that ends anywhere is taken up as any other. Before, what was stored of the old ranges is ended in the stream
(``resumption``). The dead letter of a row is stored before the record no longer names the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgsluice.replicator.pipelines.key_ranges import RowsWanted
from pgsluice.replicator.pipelines.query_reader import QueryReader
from pgsluice.replicator.pipelines.range_copy import PublishingRun, unreadable_error
from pgsluice.replicator.pipelines.resumption import RunResumption
from pgsluice.replicator.pipelines.run_planning import Planned
from pgsluice.replicator.snapshot.copy_task_messages import RangeOutcome, RangeStatus
from pgsluice.replicator.snapshot.dead_rows import RowLetters
from pgsluice.replicator.snapshot.export import SnapshotKeeper
from pgsluice.replicator.snapshot.range_reader import encode_key
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pipelines.run_records import RangeRecord, RunRecord, store_pipeline

PARTS = 8  # of a range that is cut: about as many statements for a row as with halves, in a third of the rounds
RANGES_IN_A_ROUND = 32  # which are cut: the record names all their parts
ROUNDS_WITHOUT_ROWS = 2  # then it is not some rows that the query fails on

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """``left`` is what is not stored of a range that is ended in the stream."""

    left: RangeRecord
    outcome: RangeOutcome


class RunRanges:
    """``planned`` is what is left to be read, as it is stored. ``reader`` is under the run's snapshot."""

    def __init__(
        self, bucket: StateBucket, keeper: SnapshotKeeper, reader: QueryReader, resumption: RunResumption, planned: Planned
    ) -> None:
        self.planned = planned
        self._bucket = bucket
        self._keeper = keeper
        self._reader = reader
        self._resumption = resumption
        self._letters: RowLetters | None = None
        self._rows = 0

    @property
    def rows_read(self) -> int:
        """Rows of this run in the stream, as far as known."""
        return self.planned.run.rows_read + self._rows

    async def read(self, publishing: PublishingRun) -> None:
        """Returns when all ranges are in the stream, or rows of them dead letters. Raises PgsluiceError when that cannot be."""
        run, rounds = self.planned.run, 0
        wanted = RowsWanted(run.after, run.reread_from, run.before)
        waiting = await self._copy(publishing, run.ranges, wanted) if run.ranges else []
        if waiting:
            log.warning("rows cannot be read, looking for them", pipeline=publishing.query.pipeline.name, ranges=len(waiting))
        while waiting:
            before = self.rows_read
            waiting, parts = await self._cut(publishing, waiting, wanted)
            waiting += await self._copy(publishing, parts, wanted, are_parts=True) if parts else []
            rounds += 1
            if waiting and parts:
                self._check_progress(waiting, rounds, self.rows_read - before)

    async def _copy(
        self, publishing: PublishingRun, ranges: Sequence[RangeRecord], wanted: RowsWanted, *, are_parts: bool = False
    ) -> list[_Unreadable]:
        """Copies ranges; returns the unreadable ones, of which nothing more is ever stored."""
        copied = await publishing.copy(self._keeper, ranges, wanted, are_parts=are_parts)
        self._rows += copied.rows
        outcomes = {outcome.pages.number: outcome for outcome in copied.unreadable}
        failed = replace(self.planned.run, ranges=tuple(each for each in ranges if each.number in outcomes))
        before = self._resumption.rows
        left = await self._resumption.ranges_left(publishing.snapshot_id, failed)
        self._rows += self._resumption.rows - before
        return [_Unreadable(each, outcomes[each.number]) for each in left]

    def _check_progress(self, waiting: Sequence[_Unreadable], rounds: int, rows: int) -> None:
        """Raises TerminalError when what the query met is no matter of some rows. ``rows`` were read in the newest round."""
        are_rows = all(each.left.is_row for each in waiting)
        if any(each.outcome.status is RangeStatus.TIMED_OUT for each in waiting):
            fails = not self.rows_read or (not rows and not are_rows)  # fewer rows take no less time
        else:  # one that reads new rows alone may have none but bad ones
            fails = not self.rows_read and (self.planned.run.is_full if are_rows else rounds >= ROUNDS_WITHOUT_ROWS)
        if fails:
            error = unreadable_error(waiting[-1].outcome)
            raise TerminalError(error.fact, error.remedy)  # another run would meet the same

    async def _cut(
        self, publishing: PublishingRun, waiting: Sequence[_Unreadable], wanted: RowsWanted
    ) -> tuple[list[_Unreadable], list[RangeRecord]]:
        """Cuts the newest ranges first, so that few wait; returns the remaining ones, and the parts."""
        chosen, others = waiting[-RANGES_IN_A_ROUND:], waiting[:-RANGES_IN_A_ROUND]
        rows = [each for each in chosen if each.left.is_row]
        await self._set_aside(publishing, rows)
        parts = [part for each in chosen if not each.left.is_row for part in await self._parts(publishing, each.left, wanted)]
        run = await self._store([*(each.left for each in others), *parts])
        numbered = zip(others, run.ranges, strict=False)
        return [replace(each, left=left) for each, left in numbered], list(run.ranges[len(others) :])

    async def _set_aside(self, publishing: PublishingRun, rows: Sequence[_Unreadable]) -> None:
        if self._letters is None:
            self._letters = publishing.row_letters()
        await self._letters.store([(encode_key(each.left.last), unreadable_error(each.outcome).fact) for each in rows])

    async def _parts(self, publishing: PublishingRun, left: RangeRecord, wanted: RowsWanted) -> list[RangeRecord]:
        """Returns the parts of ``left``; a part with one row is a range of that row alone."""
        parts, after, before = [], left.after, 0
        for border in await self._reader.parts(publishing.query, wanted, left, PARTS):
            rows = border.rows - before
            parts.append(RangeRecord(0, () if rows == 1 else after, border.key, rows == 1, rows=rows))
            after, before = border.key, border.rows
        return parts

    async def _store(self, ranges: list[RangeRecord]) -> RunRecord:
        planned = Planned(self.planned.record, replace(self.planned.run, rows_read=self.rows_read)).with_ranges(ranges)
        self.planned, self._rows = planned, 0
        await store_pipeline(self._bucket, planned.record.with_run(planned.run))
        return planned.run
