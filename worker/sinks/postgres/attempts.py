"""Chooses the way to write a batch at the next attempt, by the results of the attempts before.

a constraint refuses the folded outcome    each change separately, in this batch
the target refuses rows                    rows with labels, in this batch and the LABELLED_BATCHES after it
the target's table of locks is full        no staging tables, in this batch and the STAGELESS_BATCHES after it
positions of changes without a row needed  rows with labels, in this batch
a deadlock                                 rows deleted where it would truncate, in this batch
LAST_CHANGE_PASSES rejected changes        the first change of a refused row is taken out instead of the last one
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from pgsluice.shared.errors import Cause, PgsluiceError, TransientError
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.sinks.postgres.target.failure import MEETS_ANOTHER, PieceError, is_lock_table_full, target_error
from pgsluice.worker.sinks.postgres.writer import PostgresWriter

LABELLED_BATCHES = 10
STAGELESS_BATCHES = 10

LAST_CHANGE_PASSES = 5
"""The number of times that the last change of a refused row is taken out; a row with many changes in a batch must not
make as many passes."""

LOCK_TABLE_ATTEMPTS = 6
"""The number of times that a batch is tried at a target whose table of locks is full. Other sessions' locks may fill
it, but not for long."""

TASK_LOCK_ATTEMPTS = 20
"""Limit of attempts at a batch by tasks, which includes other failures, such as an unreachable target."""


class Attempts:
    """The attempts at one batch after the other. ``most_stages`` is how many staging tables a batch may have at the most."""

    def __init__(self, most_stages: int) -> None:
        self._most_stages = most_stages
        self._written = 0
        """Number of times that the current batch was written."""
        self._is_receiving = False
        self._rejecting_passes = 0
        """Number of these with rejected changes."""
        self._commits = 0
        self._lock_failures = 0
        """Number of failures because the target's table of locks was full."""
        self._one_by_one = False
        self._labelled_batches = 0
        """Number of further batches with labelled rows, because the target refused some: others may follow."""
        self._names_missing = False
        self._stageless_batches = 0
        self.truncates = True
        """True if tables are truncated, not emptied row by row."""

    @property
    def labels_rows(self) -> bool:
        return self.tries_rows or self._names_missing

    @property
    def tries_rows(self) -> bool:
        """Returns whether the merge finds the rows that the target refuses, and merges the others."""
        return self._labelled_batches > 0

    @property
    def is_ordinary(self) -> bool:
        """Returns whether rows of the current batch, and of the next one, are written normally."""
        return not (self._one_by_one or self.labels_rows)

    def limit_stages(self, most: int) -> None:
        """Limits staging tables to ``most``: the target has no room for more."""
        self._most_stages = min(self._most_stages, most)

    def next_writer(self, writer: PostgresWriter) -> PostgresWriter:
        """Counts the next attempt, and returns the writer for it."""
        self._written += not self._is_receiving
        return replace(
            writer,
            one_by_one=self._one_by_one,
            labelled=self.labels_rows,
            blame_first=self._rejecting_passes >= LAST_CHANGE_PASSES,
            stages=0 if self._stageless_batches else self._most_stages,
            is_last=self._written >= TASK_LOCK_ATTEMPTS,
        )

    def rejected(self) -> None:
        self._rejecting_passes += 1

    def label_rows(self) -> None:
        """Labels rows, because the target refuses some, and they must be identified."""
        self._labelled_batches = LABELLED_BATCHES

    def name_missing(self) -> None:
        """Has the next attempt find the positions of the batch's changes that meet no row."""
        self._names_missing = True

    def refusal(self, error: PieceError, batch: str) -> PgsluiceError | WriteAgain:
        """Returns the error when the target refuses ``batch``. Folding skips intermediate states of the source; a
        unique constraint or a foreign key may have needed them."""
        skipped = isinstance(error.cause, (*MEETS_ANOTHER, psycopg.errors.ForeignKeyViolation))
        if skipped and not self._one_by_one:
            self._one_by_one = True
            return TransientError(
                f"a constraint of table '{error.table.qualified_name}' refuses the outcome of {batch}",
                "they are applied one by one",
                Cause.TARGET,
            )
        if error.concerns_rows and not self.tries_rows:
            self.label_rows()
            return WriteAgain()
        return self.failure(error.cause, error.table, f"applying {batch}")

    def failure(self, error: psycopg.Error, table: Table | None, doing: str) -> PgsluiceError:
        """Returns the error of ``target_error``. After a lack of locks the next attempts use no staging tables.
        TRUNCATE locks out readers, and one that reads several tables all the time would meet each attempt with a
        deadlock."""
        if isinstance(error, psycopg.errors.DeadlockDetected):
            self.truncates = False
        if is_lock_table_full(error):
            self._lock_failures += 1
            self._stageless_batches = STAGELESS_BATCHES
        return target_error(error, table, doing, is_last=self._lock_failures >= LOCK_TABLE_ATTEMPTS)

    def changes_applied(self) -> None:
        """Notes that a batch of changes was applied; the next one is written in another way only if that was to last."""
        self._one_by_one = self._names_missing = False
        self.truncates = True
        self._labelled_batches = max(0, self._labelled_batches - 1)
        self._stageless_batches = max(0, self._stageless_batches - 1)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Surrounds the receipt of a batch, in which Spark may begin to write the next one: that is no attempt at the
        current batch."""
        self._is_receiving = True
        try:
            yield
        finally:
            self._is_receiving = False

    def begin_commit(self) -> None:
        self._commits += 1

    def committed(self) -> bool:
        """Begins the attempts at the next batch, of changes or of copied rows. Returns whether one at this batch
        failed, and may have left something."""
        failed_before = self._commits > 1
        self._written = self._rejecting_passes = self._commits = self._lock_failures = 0
        return failed_before
