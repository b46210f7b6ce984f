"""Merging a round whose rows the target does not all take: the others are merged, the refused ones are named.

A row may be refused only because another one is not there yet, or not gone yet. So what was refused is tried again as long as
that helped anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import psycopg
from psycopg import sql

from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.postgres.fold.piece import ParkedText, Piece, StagedRows
from pgsluice.worker.sinks.postgres.merge.row_search import RefusedRow, copy_apart, refused_rows
from pgsluice.worker.sinks.postgres.merge.staging import SessionStages, Stage, stage_identifier
from pgsluice.worker.sinks.postgres.own.parked_text import fetch
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import PieceError, reason
from pgsluice.worker.sinks.postgres.target.table import TargetTable


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows of one piece, where the merge reads them."""

    piece: Piece
    target: TargetTable
    identifier: sql.Identifier

    def stage(self, low: int, high: int) -> Stage:
        rows = sql.SQL("(SELECT * FROM {} WHERE n >= {} AND n < {})").format(self.identifier, sql.Literal(low), sql.Literal(high))
        return Stage(rows, self.target)

    def rows(self, low: int, high: int) -> Piece:
        """How many of them meet no row at the target is not counted."""
        return replace(self.piece, rows=high - low, absent=high - low)


@dataclass(frozen=True, slots=True)
class RowMerge:
    """Of one batch, in its transaction. Stages have the columns that ``BlamedPositions`` adds. What was refused is in
    ``rejections``."""

    connection: Connection
    targets: dict[Table, TargetTable]
    stages: SessionStages
    rejections: list[Rejection] = field(default_factory=list)

    def takes(self, work: Callable[[], None]) -> bool:
        """Whether the target took all that ``work`` does; nothing of it is done otherwise. Raises a PieceError that is not about
        rows."""
        try:
            with self.connection.transaction():
                work()
        except PieceError as error:
            if not error.concerns_rows:
                raise
            return False
        return True

    def apply(self, pieces: Sequence[Piece], merge: Callable[[Piece, Stage], None]) -> None:
        """Merges what the target takes, in the order given. ``merge`` applies the rows of a stage. Raises PieceError."""
        sources = [self._source(piece) for piece in pieces]
        refused = [(source, row) for source in sources for row in self._merge(source, 0, source.piece.rows, merge)]
        while refused:
            left = [(source, row) for source, (n, _) in refused for row in self._merge(source, n, n + 1, merge)]
            if len(left) == len(refused):
                break
            refused = left
        self.rejections.extend(self._rejection(source, row) for source, row in refused)
        for source in sources:
            if not isinstance(source.piece.content, StagedRows):
                self.stages.empty(self.stages[source.target, source.piece.kind], source.piece.text_bytes)

    def _source(self, piece: Piece) -> _Source:
        target = self.targets[piece.table]
        if isinstance(piece.content, StagedRows):
            return _Source(piece, target, stage_identifier(piece.content.name))
        text = fetch(self.connection, piece.content) if isinstance(piece.content, ParkedText) else piece.content
        identifier = self.stages[target, piece.kind].identifier
        assert isinstance(identifier, sql.Identifier)
        try:
            self.rejections.extend(copy_apart(self.connection, identifier, target, text))
        except psycopg.Error as error:
            raise PieceError(piece.table, error) from None
        return _Source(piece, target, identifier)

    def _merge(self, source: _Source, first: int, end: int, merge: Callable[[Piece, Stage], None]) -> list[RefusedRow]:
        def attempt(low: int, high: int) -> None:
            with self.connection.transaction():
                merge(source.rows(low, high), source.stage(low, high))

        try:
            return refused_rows(first, end, attempt)
        except psycopg.Error as error:
            raise PieceError(source.piece.table, error) from None

    def _rejection(self, source: _Source, refused: RefusedRow) -> Rejection:
        n, error = refused
        query = sql.SQL("SELECT position FROM {} WHERE n = {}").format(source.identifier, sql.Literal(n))
        found = self.connection.execute(query).fetchone()
        assert found is not None, "a refused row is in its stage"
        return Rejection(Position.parse(found[0]), reason(error, source.target.table))
