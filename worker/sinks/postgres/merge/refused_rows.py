"""Finds the rows that the target refuses among many, and merges the others.

Rows are tried in ranges. One that fails is cut: a large one into chunks, a chunk at COPY's error position, or in
halves. So b bad rows among n cost about b · log(CHUNK_ROWS) attempts beyond the n / CHUNK_ROWS of the chunks, and few
rows are tried often.

In a merge a row may be refused only because another one does not exist yet, or is not gone yet. So refused rows are
tried again as long as that helps. Rows that exchange their keys, or refer to each other, go only together, though, and
are refused one by one. So the batch is tried without fewer and fewer of them, until each remaining one has to be left
out if the others are. If that is one row, it is the cause. Among several there may be one that only misses another of
them, as their reasons show.

Where more rows are refused for what they are than there may be dead letters, the batch cannot be applied, and the
search ends. A table that takes none of its rows is one for ``dead_letters.refusals``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar, assert_never

import psycopg
from psycopg import sql

from pgsluice.shared.rows.copy_text import join_lines, split_fields, split_lines
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.refusals import MOST_REFUSALS, Refusals
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.sinks.postgres.fold.piece import HandedText, ParkedText, Piece, StagedRows
from pgsluice.worker.sinks.postgres.merge.staging import SessionStages, Stage, copy_into
from pgsluice.worker.sinks.postgres.own.handed_text import fetch_handed
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.own.parked_text import fetch
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import PieceError, concerns_rows, reason
from pgsluice.worker.sinks.postgres.target.table import TargetTable

CHUNK_ROWS = 1024
"""Number of rows that take about as long as a statement's own cost, so that cutting them smaller at once would gain
nothing."""

_LINE = re.compile(r"COPY [^,]*, \w+ (\d+)")
"""COPY's error position: in English ``COPY t, line 3, column c2: …``; most other languages keep that shape. In others,
halves are tried."""

RefusedRow = tuple[int, psycopg.Error]
T = TypeVar("T")


_CURED_BY_OTHERS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.ForeignKeyViolation,
    psycopg.errors.ExclusionViolation,
    psycopg.errors.RaiseException,
)
"""A trigger may look for other rows."""


MOST_TRIALS = 24
"""The number of times that a batch is tried without some of its rows; each trial merges the others."""


@dataclass(slots=True)
class RefusalBound:
    """Counts rows of a batch that are refused independent of other rows. They are too many when they are more than
    ``most``, and MOST_REFUSALS or more: enough to decide whether a table is at fault that accepts none."""

    most: int
    _found: int = 0

    @property
    def is_exceeded(self) -> bool:
        return self._found > self.most and self._found >= MOST_REFUSALS

    def note(self, error: psycopg.Error) -> None:
        self._found += not isinstance(error, _CURED_BY_OTHERS)


def refused_rows(
    first: int, end: int, attempt: Callable[[int, int], None], bound: RefusalBound | None = None
) -> list[RefusedRow]:
    """Returns the rows among ``first`` to ``end - 1`` that cannot be applied; the others are, in sequence. ``attempt``
    applies a range in a savepoint; it raises the target's error. An error that is not about rows is raised. It ends
    early when ``bound`` is exceeded."""
    refused: list[RefusedRow] = []
    ranges = [(first, end)] if first < end else []
    while ranges and not (bound and bound.is_exceeded):
        low, high = ranges.pop()
        try:
            attempt(low, high)
        except psycopg.Error as error:
            if not concerns_rows(error):
                raise
            bad = low if high - low == 1 else _failed_row(error, low, high)
            if bad is None:
                ranges += _cut(low, high)
            else:
                refused.append((bad, error))
                if bound is not None:
                    bound.note(error)
                ranges += [each for each in ((bad + 1, high), (low, bad)) if each[0] < each[1]]
    return refused


def copy_accepted(
    connection: Connection, stage: sql.Composable, target: TargetTable, text: bytes, bound: RefusalBound
) -> tuple[list[Rejection], Refusals]:
    """Copies the rows of ``text`` that the types of ``stage`` take. The last field of a row is its position."""
    lines, refusals = split_lines(text), Refusals()

    def copy(low: int, high: int) -> None:
        with connection.transaction():
            copy_into(connection, stage, [join_lines(lines[low:high])], new=False)
        refusals.note_taken()

    rejections = []
    for row, error in refused_rows(0, len(lines), copy, bound):
        why = reason(error, target.table)
        refusals.note_refused(why)
        rejections.append(Rejection(Position.parse(split_fields(lines[row])[-1].decode()), why))
    return rejections, refusals


def check_table(table: Table, refusals: Refusals) -> None:
    """Raises TransientError when the target refuses all rows of ``table``."""
    remedy = "check that table's triggers and constraints at the target, and let it accept the rows of the source table"
    refusals.check(f"table '{table.qualified_name}' of the target", remedy)


def few_of(things: Sequence[T], does: Callable[[Sequence[T]], bool], most_trials: int = MOST_TRIALS) -> Sequence[T]:
    """Returns some of ``things`` for which ``does`` holds as it does for all of them, and mostly for none of their parts. It
    tries halves, quarters and so on, and what is left without each of them (Zeller's delta debugging)."""
    parts, trials = 2, 0
    while len(things) > 1:
        borders = [len(things) * part // parts for part in range(parts + 1)]
        ranges = list(pairwise(borders))
        choices = [things[low:high] for low, high in ranges]
        choices += [[*things[:low], *things[high:]] for low, high in ranges] if parts > 2 else []
        found = None
        for choice in choices:
            trials += 1
            if trials > most_trials:
                return things
            if does(choice):
                found = choice
                break
        if found is not None:
            things, parts = found, 2
        elif parts >= len(things):
            break
        else:
            parts = min(2 * parts, len(things))
    return things


def _failed_row(error: psycopg.Error, low: int, high: int) -> int | None:
    """Returns the row at which COPY failed, when the range is small enough to copy the rows before it once more."""
    found = _LINE.match(error.diag.context or "")
    if found is None or high - low > CHUNK_ROWS:
        return None
    row = low + int(found[1]) - 1
    return row if row < high else None


def _cut(low: int, high: int) -> Sequence[tuple[int, int]]:
    """The last range first, for they are taken from the end."""
    size = CHUNK_ROWS if high - low > CHUNK_ROWS else -(-(high - low) // 2)
    return list(reversed(list(pairwise([*range(low, high, size), high]))))


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows of one piece, where the merge reads them. ``is_empty``: the types of the stage took none."""

    piece: Piece
    target: TargetTable
    identifier: sql.Identifier
    is_empty: bool = False

    def stage(self, stages: SessionStages, low: int, high: int) -> Stage:
        rows = sql.SQL("(SELECT * FROM {} WHERE n >= {} AND n < {})").format(self.identifier, sql.Literal(low), sql.Literal(high))
        return stages.of(rows, self.target)

    def rows(self, low: int, high: int) -> Piece:
        """The rows that may be absent are the last ones."""
        absent = max(0, high - max(low, self.piece.rows - self.piece.absent))
        return replace(self.piece, rows=high - low, absent=absent)


@dataclass(frozen=True, slots=True)
class RowMerge:
    """Merges the accepted rows of one batch, in its transaction. Stages have the columns that ``BlamedPositions`` adds.
    Refused rows are raised by ``check``, which ``apply`` calls when that is more than ``bound`` allows.
    ``checks_at_once``: no constraint waits for the end of the batch."""

    connection: Connection
    targets: Mapping[Table, TargetTable]
    stages: SessionStages
    bound: RefusalBound
    rejections: list[Rejection] = field(default_factory=list)
    refusals: defaultdict[Table, Refusals] = field(default_factory=lambda: defaultdict(Refusals))
    checks_at_once: bool = False
    cured_by_others: set[Position] = field(default_factory=set)
    """Positions of rejections that other rows may be the cause of."""

    def leave_out_few(self, takes_without: Callable[[Sequence[Position]], bool]) -> None:
        """Removes needless ``rejections``, unless that would take more than MOST_TRIALS; the reasons of the others
        include how many were refused together. ``takes_without`` returns whether the target accepts the batch without
        the changes at these positions."""
        doubtful = [each.position for each in self.rejections if each.position in self.cured_by_others]
        sure = [each.position for each in self.rejections if each.position not in self.cured_by_others]
        left = set(doubtful)
        if 2 <= len(doubtful) <= MOST_TRIALS and takes_without(sure + doubtful):
            left = set(few_of(doubtful, lambda some: takes_without(sure + list(some))))
        others = len(left) - 1
        together = f"; refused together with {others} more of its batch, so it may be fine itself" if others > 0 else ""
        self.rejections[:] = [
            replace(each, reason=each.reason + together) if each.position in left else each
            for each in self.rejections
            if each.position in left or each.position not in self.cured_by_others
        ]

    def check(self) -> None:
        """Raises RejectedChanges when rows were refused, TransientError when all of a table were."""
        for table, refusals in self.refusals.items():
            check_table(table, refusals)
        if self.rejections:
            raise RejectedChanges(self.rejections)

    def takes(self, pieces: Sequence[Piece], work: Callable[[], None]) -> bool:
        """Returns whether the target took ``pieces``, which ``work`` merges; nothing of it is done otherwise. Raises a
        PieceError that is not about rows.
        """
        try:
            with self.connection.transaction():
                work()
        except PieceError as error:
            if not error.concerns_rows:
                raise
            return False
        for piece in pieces:
            self.refusals[piece.table].note_taken()
        return True

    def apply(self, pieces: Sequence[Piece], merge: Callable[[Piece, Stage], None]) -> None:
        """Merges what the target takes, in the order given. ``merge`` applies the rows of a stage. Raises PieceError."""
        sources = [self._source(piece) for piece in pieces]
        refused = [(source, row) for source in sources for row in self._merge(source, 0, source.piece.rows, merge, self.bound)]
        while refused and not self.bound.is_exceeded:
            left = [(source, row) for source, (n, _) in refused for row in self._merge(source, n, n + 1, merge, None)]
            if len(left) == len(refused):
                break
            refused = left
        for source, row in refused:
            self._refuse(source.piece.table, self._rejection(source, row))
        if self.bound.is_exceeded:
            self.check()
        for source in sources:
            # a single kind: empties the stages of all pieces but staged ones, whose tables are their own
            if not isinstance(source.piece.content, StagedRows):
                self.stages.empty(self.stages[source.target, source.piece.kind], source.piece.text_bytes)

    def _source(self, piece: Piece) -> _Source:
        target = self.targets[piece.table]
        match piece.content:
            case StagedRows(name=name):
                return _Source(piece, target, own_table(name))
            case ParkedText() as parked:
                text = fetch(self.connection, parked)
            case HandedText() as handed:
                text = b"".join(fetch_handed(handed))
            case bytes():
                text = piece.content
            case unreachable:
                assert_never(unreachable)
        identifier = self.stages[target, piece.kind].identifier
        assert isinstance(identifier, sql.Identifier)
        try:
            rejections, staged = copy_accepted(self.connection, identifier, target, text, self.bound)
        except psycopg.Error as error:
            raise PieceError(piece.table, error) from None
        for rejection in rejections:
            self._refuse(piece.table, rejection)
        return _Source(piece, target, identifier, is_empty=not staged.has_taken)

    def _merge(
        self, source: _Source, first: int, end: int, merge: Callable[[Piece, Stage], None], bound: RefusalBound | None
    ) -> list[RefusedRow]:
        def attempt(low: int, high: int) -> None:
            with self.connection.transaction():
                merge(source.rows(low, high), source.stage(self.stages, low, high))
            if not source.is_empty:
                self.refusals[source.piece.table].note_taken()

        try:
            return refused_rows(first, end, attempt, bound)
        except psycopg.Error as error:
            raise PieceError(source.piece.table, error) from None

    def _refuse(self, table: Table, rejection: Rejection) -> None:
        self.rejections.append(rejection)
        self.refusals[table].note_refused(rejection.reason)

    def _rejection(self, source: _Source, refused: RefusedRow) -> Rejection:
        n, error = refused
        query = sql.SQL("SELECT position FROM {} WHERE n = {}").format(source.identifier, sql.Literal(n))
        found = self.connection.execute(query).fetchone()
        assert found is not None, "a refused row is in its stage"
        position = Position.parse(found[0])
        if isinstance(error, _CURED_BY_OTHERS):
            self.cured_by_others.add(position)
        return Rejection(position, reason(error, source.target.table))
