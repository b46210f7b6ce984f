"""What is known of a pipeline's runs: one record, in the state bucket of the pipeline's group.

    state         set by                                     the next run
    reading       a run, before its first message            takes up what is left; the runner that set it is gone, for the source
                                                             is locked against two
    interrupted   a run that was asked to stop               takes up what is left
    failed        a run that met an error to the end         takes up what is left
    finished      a run, when JetStream has every row        begins at the checkpoint
    abandoned     a full run, of the one that it replaces    -

Rows that a run has published count, whatever becomes of it. How far a range has come says its newest message
(``SnapshotHeaders.last_key``); the record says which ranges there are. The checkpoint moves when a run is finished, and never
back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.broker.record import TimeText

PIPELINE_KEY = "pipeline"
MOST_RUNS = 50
"""That are told of."""

Key = tuple[str, ...]
"""Values of the cursor's columns as text; () for none."""


class RunState(enum.StrEnum):
    READING = "reading"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    FINISHED = "finished"
    ABANDONED = "abandoned"

    @property
    def is_left(self) -> bool:
        """Whether the next run takes up what is left of one in this state."""
        return self in (RunState.READING, RunState.INTERRUPTED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """Rows whose key is above ``after`` (() for the run's own beginning) and up to ``last``."""

    number: int
    after: tuple[str, ...]
    last: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """``attempt`` counts how often the run was begun or taken up. ``after``, ``reread_from`` and ``before`` say which rows it
    reads (``key_ranges.RowsWanted``). ``last`` and ``border`` are the pipeline's checkpoint and ``reread_from`` when it is
    finished. ``rows`` are those that it planned to read, ``last_sequence`` is where the snapshot stream ended with it."""

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

    def ended(self, state: RunState, last_sequence: int, reason: str = "") -> RunRecord:
        return replace(self, state=state, finished_at=now(), last_sequence=last_sequence, reason=reason)


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """``snapshot`` is under which its rows are published. All rows up to ``checkpoint`` were read, but for those whose
    incremental key is ``reread_from`` or later: rows may have come there late. "" for none. ``next_range`` is a number that no
    range had."""

    pipeline: str
    fingerprint: str
    snapshot: str
    checkpoint: tuple[str, ...] = ()
    reread_from: str = ""
    next_range: int = 1
    runs: tuple[RunRecord, ...] = ()

    @property
    def newest(self) -> RunRecord | None:
        return self.runs[-1] if self.runs else None

    @property
    def left(self) -> RunRecord | None:
        """The run that was not finished, and is to be taken up."""
        return self.newest if self.newest is not None and self.newest.state.is_left else None

    def with_run(self, run: RunRecord) -> PipelineRecord:
        """``run`` as the newest, in the place of what is known of it already. Of older ones the ranges are forgotten."""
        older = [replace(each, ranges=()) for each in self.runs if each.number != run.number]
        return replace(self, runs=(*older, run)[-MOST_RUNS:])

    def finished(self, run: RunRecord, last_sequence: int) -> PipelineRecord:
        """When every row of ``run`` is stored."""
        ended = replace(run.ended(RunState.FINISHED, last_sequence), ranges=())
        return replace(self.with_run(ended), checkpoint=run.last, reread_from=run.border)


async def load_pipeline(bucket: StateBucket) -> PipelineRecord | None:
    """None before the first run. Raises TerminalError when the record is not of this version's form."""
    entry = await bucket.read(PIPELINE_KEY, PipelineRecord)
    return None if entry is None else entry.value


async def store_pipeline(bucket: StateBucket, record: PipelineRecord) -> None:
    await bucket.put(PIPELINE_KEY, record)
