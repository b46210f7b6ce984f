"""A pipeline's runs: one record, in the state bucket of the pipeline's group.

    state         set by                                     the next run
    reading       a run, before its first message            takes up what is left; the runner that set it is gone, for the source
                                                             is locked against two
    interrupted   a run that was asked to stop               takes up what is left
    paused        a run that a user paused                   takes up what is left
    failed        a run that met an error to the end         takes up what is left
    finished      a run, when JetStream has every row        begins at the checkpoint
    cancelled     a run that a user cancelled, or cancel     begins at the checkpoint, after it ended the run's ranges in the
                  if no process read for it                  stream
    abandoned     a full run, of the one that it replaces    -

Requests for runs are in another record (``run_requests``).

Rows that a run has published stay valid, whatever its outcome. The newest message of a range holds its progress
(``SnapshotHeaders.last_key``); the record holds the list of ranges. The checkpoint moves when a run is finished, and
never back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from pgsluice.shared.broker.bucket import Bucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.broker.record import TimeText

PIPELINE_KEY = "pipeline"
MOST_RUNS = 50
"""Number of runs that are kept."""

Key = tuple[str, ...]
"""Values of the cursor's columns as text; () for none."""


class RunState(enum.StrEnum):
    READING = "reading"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"
    FAILED = "failed"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"

    @property
    def is_unfinished(self) -> bool:
        """Returns whether the next run takes up what is left of one in this state."""
        return self in (RunState.READING, RunState.INTERRUPTED, RunState.PAUSED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """Rows whose key is above ``after`` (() for the run's own beginning) and up to ``last``. ``is_row``: the row with
    that key alone, whether the run wants it or not. ``is_replayed``: it is a dead letter that is read again, unless the
    run wants the row and so reads it in another range. ``rows`` is their number, counted over all rows in order; None
    if they were not counted, or an earlier version of pgsluice cut the range."""

    number: int
    after: tuple[str, ...]
    last: tuple[str, ...]
    is_row: bool = False
    is_replayed: bool = False
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class RunRows:
    """Numbers that only grow: rows in the stream, rows on which steps or the query failed, and rows that were deleted
    because the query no longer returned them."""

    read: int = 0
    dead: int = 0
    deleted: int = 0

    def __add__(self, other: RunRows) -> RunRows:
        return RunRows(self.read + other.read, self.dead + other.dead, self.deleted + other.deleted)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """``attempt`` counts how often the run was begun or taken up. ``after``, ``reread_from`` and ``before`` determine
    which rows it reads (``key_ranges.RowsWanted``). ``last`` and ``border`` are the pipeline's checkpoint and
    ``reread_from`` when it is finished. ``rows`` is the number that it planned to read, ``last_sequence`` is where the
    snapshot stream ended with it. ``rows_read`` are those in the stream, known of attempts before the newest one, and
    of a run that is finished; ``plan_s`` and ``read_s`` are what its attempts took, except killed ones. ``horizon_s``
    is for how long the oldest transaction was open when the run began, None where that was not measured: the next run
    reads from there again. ``request`` is the request that it was begun or taken up for, "" for a user at a terminal.
    ``version`` is the newest attempt's (``run_mark``), 0 where an earlier version of pgsluice made it. ``reconciles``:
    it deletes ``rows`` rows that the query no longer returns. ``applied_at`` is when the last of the group's workers
    had applied it, ``unchanged`` how many of its rows each of them found unchanged: "" and None if unknown
    (``run_outcome``)."""

    number: int
    state: RunState
    is_full: bool
    started_at: TimeText
    attempt: int = 1
    finished_at: TimeText = ""
    rows: int = 0
    after: tuple[str, ...] = ()
    reread_from: str = ""
    before: str = ""
    last: tuple[str, ...] = ()
    border: str = ""
    ranges: tuple[RangeRecord, ...] = ()
    last_sequence: int = 0
    reason: str = ""
    dead: int = 0
    request: str = ""
    rows_read: int = 0
    plan_s: float = 0.0
    read_s: float = 0.0
    horizon_s: float | None = None
    version: int = 0
    reconciles: bool = False
    applied_at: TimeText = ""
    unchanged: int | None = None

    @property
    def all_rows(self) -> RunRows:
        """Rows of the run, as far as they are noted: when an attempt has ended."""
        is_deleted = self.reconciles and self.state is RunState.FINISHED
        return RunRows(self.rows_read, self.dead, self.rows if is_deleted else 0)

    def ended(self, state: RunState, last_sequence: int, reason: str = "") -> RunRecord:
        return replace(self, state=state, finished_at=now(), last_sequence=last_sequence, reason=reason)


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """``snapshot`` is under which its rows are published. All rows up to ``checkpoint`` were read, except those whose
    incremental key is ``reread_from`` or later: rows may have come there late. "" for none. ``next_range`` is a number
    that no range had. ``reconciled_at`` is when a comparison of target and query was completed, ``is_reconciling``:
    that was begun since. ``forgotten`` are the runs before ``runs``, of which only the numbers of rows are kept."""

    pipeline: str
    fingerprint: str
    snapshot: str
    checkpoint: tuple[str, ...] = ()
    reread_from: str = ""
    next_range: int = 1
    reconciled_at: TimeText = ""
    is_reconciling: bool = False
    runs: tuple[RunRecord, ...] = ()
    forgotten: RunRows = RunRows()

    @property
    def rows(self) -> RunRows:
        """Rows of all runs ever."""
        return sum((run.all_rows for run in self.runs), self.forgotten)

    @property
    def newest(self) -> RunRecord | None:
        return self.runs[-1] if self.runs else None

    @property
    def unfinished(self) -> RunRecord | None:
        """The unfinished run, which the next start takes up."""
        return self.newest if self.newest is not None and self.newest.state.is_unfinished else None

    @property
    def with_open_ranges(self) -> RunRecord | None:
        """The run whose ranges were not ended in the stream: a task may still be at work on them."""
        newest = self.newest
        return newest if newest is not None and (newest.state.is_unfinished or newest.ranges) else None

    def run_of(self, request: str) -> RunRecord | None:
        """Returns the newest run that was begun for the request."""
        return next((each for each in reversed(self.runs) if each.request == request), None)

    def next_version(self, lsn: int) -> int:
        """Returns a version above every attempt's so far. ``lsn`` is the source's position: so it is higher even after
        this record was dropped."""
        return max([lsn, *(run.version + 1 for run in self.runs)])

    def with_run(self, run: RunRecord) -> PipelineRecord:
        """Returns the record with ``run`` as the newest, in the place of what is known of it already. Of older ones the
        ranges are forgotten."""
        runs = (*(replace(each, ranges=()) for each in self.runs if each.number != run.number), run)
        forgotten = sum((each.all_rows for each in runs[:-MOST_RUNS]), self.forgotten)
        return replace(self, runs=runs[-MOST_RUNS:], forgotten=forgotten)

    def with_cancelled(self, number: int) -> PipelineRecord:
        """Returns the record with the run of that number ended as cancelled, when it is left; the same object otherwise."""
        left = self.unfinished
        if left is None or left.number != number:
            return self
        return self.with_run(left.ended(RunState.CANCELLED, left.last_sequence, left.reason))

    def finished(self, run: RunRecord, last_sequence: int) -> PipelineRecord:
        """Returns the record after every row of ``run`` is stored."""
        ended = replace(run.ended(RunState.FINISHED, last_sequence), ranges=())
        return replace(self.with_run(ended), checkpoint=run.last, reread_from=run.border)


async def load_pipeline(bucket: Bucket) -> PipelineRecord | None:
    """Returns None before the first run. Raises TerminalError when the record is not of this version's form."""
    entry = await bucket.read(PIPELINE_KEY, PipelineRecord)
    return None if entry is None else entry.value


async def store_pipeline(bucket: Bucket, record: PipelineRecord) -> None:
    await bucket.put(PIPELINE_KEY, record)
