"""The moments at which tables became ready at a worker's destination.

A table is ready when the worker has applied its copy, when it has joined the others, and when the worker has applied the changes
that were made meanwhile, too (``AppliedPlaces.phase``).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from pgsluice.shared.broker.ledger import CopyState, LedgerContent, Phase, TableRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.broker.worker_records import ReadyRecord, WorkerReport
from pgsluice.shared.units.applied_places import NOTHING_PUBLISHED, AppliedPlaces
from pgsluice.shared.wire.position import LSN, format_lsn
from pgsluice.worker.sinks.sink import Applied

_APPLIED_COPY = (Phase.SYNC_WAIT, Phase.CATCHUP, Phase.READY)


class ReadyTables:
    """Used by one thread at a time.

    A table that may have been ready before this process looked for the first time, and that the record does not name, has "" for
    its moment: ``record`` leaves it out.
    """

    def __init__(self, applied: Applied) -> None:
        self.waits = False
        """True if there are tables that are not ready yet."""
        self._applied = applied
        self._moved_at = now()
        self._ledger: LedgerContent | None = None
        self._moments: dict[tuple[int, int], str] = {}

    @property
    def record(self) -> ReadyRecord:
        return ReadyRecord.of({copy: at for copy, at in self._moments.items() if at})

    def take_up(self, record: ReadyRecord) -> None:
        """Takes up what an earlier process recorded."""
        self._moments = record.by_copy()

    def go_on(self, applied: Applied) -> None:
        """Continues after a pause, in which the sink may have come to any position."""
        if replace(applied, rules=self._applied.rules) != self._applied:
            self._applied, self._moved_at, self._ledger = applied, now(), None

    def know(self, ledger: LedgerContent, published: LSN = NOTHING_PUBLISHED, stream: StreamState | None = None) -> bool:
        """Takes the ledger as it is now and, with ``stream``, how far the stream is. Returns whether ``record`` has changed."""
        before, self._ledger = self._ledger, ledger
        if before is ledger and not self.waits:
            return False
        return self._look(ledger, published, stream, is_first=before is None)

    def move(self, applied: Applied) -> bool:
        """Takes the position after a batch. Returns whether ``record`` has changed."""
        is_cohort_new = applied.catch_up != self._applied.catch_up
        self._applied, self._moved_at = applied, now()
        if self._ledger is None or not (self.waits or is_cohort_new):
            return False
        return self._look(self._ledger, NOTHING_PUBLISHED, None, is_first=False)

    def _look(self, ledger: LedgerContent, published: LSN, stream: StreamState | None, *, is_first: bool) -> bool:
        here = AppliedPlaces((self._place(),), published, stream)
        left_out = frozenset[int]() if self._applied.catch_up is None else self._applied.catch_up.tables
        is_first_copy = not self._applied.sequence and ledger.snapshot is not None and ledger.snapshot.state is CopyState.RUNNING
        moments: dict[tuple[int, int], str] = {}
        waits = False
        for table in ledger.tables.values():
            phase, copy = here.phase(table, ledger.snapshot), (table.oid, table.last_sequence)
            if table.oid in left_out or phase is Phase.FINISHED_COPY or phase.is_waiting_for_copy:
                waits = True
            elif phase not in _APPLIED_COPY:
                continue
            elif copy in self._moments:
                moments[copy] = self._moments[copy]  # a place that has passed the copy's LSN does not go back
            elif not table.last_sequence or (is_first and (phase is Phase.READY or not is_first_copy)):
                moments[copy] = ""
            elif phase is Phase.READY:
                moments[copy] = self._moment(table)
            else:
                waits = True
        is_new = moments != self._moments
        self._moments, self.waits = moments, waits
        return is_new

    def _place(self) -> WorkerReport:
        """Returns the worker's position as in its report, which does not include left-out tables."""
        applied = self._applied
        return WorkerReport(applied.sequence, applied.snapshot_sequence, format_lsn(applied.commit_lsn))

    def _moment(self, table: TableRecord) -> str:
        """Returns the later of two moments: the worker came to its place, or the copy turned out to be whole."""
        return max(self._moved_at, datetime.fromisoformat(table.since)).isoformat()


def now() -> datetime:
    return datetime.now(UTC)
