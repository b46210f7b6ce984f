"""Merges the pieces of a batch into the target's tables, inside the caller's transaction.

Partitions and rounds come strictly in order. Within a round new and changed rows go first, tables that others refer to before
those that refer to them; then deletions, the other way round. A row that takes over a unique value of a deleted one needs the
opposite, so a round that fails that way is tried again with its deletions first. (So does a row whose key equals a deleted
one's without being the same text; where keys can do that, their deletions always go first.)
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import psycopg

from shared.table import Table
from worker.sinks.postgres.connection import Connection
from worker.sinks.postgres.failure import PieceError
from worker.sinks.postgres.piece import Clearing, Piece, PieceKind, Share, StagedRows
from worker.sinks.postgres.staging import SessionStages, Stage, copy_into, stage_identifier
from worker.sinks.postgres.statements import truncate_statement
from worker.sinks.postgres.target_table import TargetTable

_WRITE_ORDER = (PieceKind.MOVE, PieceKind.PATCH, PieceKind.INSERT, PieceKind.UPSERT, PieceKind.IN_ORDER)
_JOINED = (PieceKind.MOVE, PieceKind.PATCH, PieceKind.DELETE)

_NO_SCANS = "SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)"


@dataclass(frozen=True, slots=True)
class Merge:
    """Merges through ``connection``. ``targets`` and ``stages`` hold everything that the batch's pieces need. ``missing``
    counts changes that met no row, by table: not an error, the target may have been started without the row."""

    connection: Connection
    targets: dict[Table, TargetTable]
    stages: SessionStages
    missing: Counter[str] = field(default_factory=Counter)

    def apply(self, shares: Sequence[Share]) -> None:
        """Raises PieceError."""
        pieces = [piece for share in shares for piece in share.pieces]
        joined = [piece for piece in pieces if piece.kind in _JOINED]
        if joined and all(isinstance(piece.content, bytes) for piece in joined):
            # A temporary table has no statistics; the guess for it is large enough to make a scan of the target look cheap.
            self.connection.execute(_NO_SCANS)
        for share in shares:
            self._clear(share.clearings)
            for _, round_pieces in itertools.groupby(share.pieces, key=lambda piece: piece.round):
                self._merge_round(list(round_pieces))

    def _clear(self, clearings: Sequence[Clearing]) -> None:
        if not clearings:
            return
        tables = [self.targets[clearing.table] for clearing in clearings]
        statement = truncate_statement(tables, restart_identity=any(clearing.restart_identity for clearing in clearings))
        try:
            self.connection.execute(statement)
        except psycopg.Error as error:
            raise PieceError(clearings[0].table, error) from None

    def _merge_round(self, pieces: list[Piece]) -> None:
        order = self._referenced_first({piece.table for piece in pieces})
        pieces.sort(key=lambda piece: (order[piece.table], _WRITE_ORDER.index(piece.kind) if piece.kind in _WRITE_ORDER else 0))
        writes = [piece for piece in pieces if piece.kind is not PieceKind.DELETE]
        deletes = [piece for piece in reversed(pieces) if piece.kind is PieceKind.DELETE]
        if not writes or not deletes:
            self._apply_all(writes or deletes)
            return
        early = [piece for piece in deletes if not self.targets[piece.table].has_exact_key]
        late = [piece for piece in deletes if self.targets[piece.table].has_exact_key]
        try:
            with self.connection.transaction():
                self._apply_all(early + writes + late)
        except PieceError as error:
            if not isinstance(error.cause, psycopg.errors.UniqueViolation):
                raise
            self._apply_all(deletes + writes)

    def _referenced_first(self, tables: Iterable[Table]) -> dict[Table, int]:
        """A place for each table, after the places of those it refers to. Tables that refer to each other in a circle get
        places in some order: only deferred constraints can serve them."""
        targets = [self.targets[table] for table in tables]
        present = {target.oid for target in targets}
        references = {target.oid: (target.references & present) - {target.oid} for target in targets}
        try:
            places = list(TopologicalSorter(references).static_order())
        except CycleError:
            places = sorted(present)
        return {target.table: places.index(target.oid) for target in targets}

    def _apply_all(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            try:
                self._apply(piece)
            except psycopg.Error as error:
                raise PieceError(piece.table, error) from None

    def _apply(self, piece: Piece) -> None:
        if isinstance(piece.content, StagedRows):
            self._merge(piece, Stage(stage_identifier(piece.content.name), self.targets[piece.table]))
        else:
            stage = self.stages[self.targets[piece.table], piece.kind]
            copy_into(self.connection, stage.identifier, piece.content, new=False)
            self._merge(piece, stage)
            self.stages.empty(stage, len(piece.content))

    def _merge(self, piece: Piece, stage: Stage) -> None:
        if piece.kind is PieceKind.INSERT and piece.table.key:
            try:
                with self.connection.transaction():
                    self._run(stage, PieceKind.INSERT)
            except psycopg.errors.UniqueViolation:
                self._run(stage, PieceKind.UPSERT)
            return
        missing = self._missing(piece, self._run(stage, piece.kind))
        if missing > 0:
            self.missing[piece.table.qualified_name] += missing

    def _run(self, stage: Stage, kind: PieceKind) -> int:
        """The number of rows that the last statement touched."""
        touched = 0
        for statement in stage.statements(kind):
            touched = self.connection.execute(statement).rowcount
        return touched

    def _missing(self, piece: Piece, touched: int) -> int:
        """How many of the piece's changes met no row."""
        match piece.kind:
            case PieceKind.PATCH | PieceKind.MOVE | PieceKind.DELETE:
                return piece.rows - piece.absent - touched
            case PieceKind.IN_ORDER:
                found = self.connection.execute("SELECT current_setting('pgsluice.missing')").fetchone()
                return int(found[0]) if found else 0
            case PieceKind.INSERT | PieceKind.UPSERT:
                return 0
