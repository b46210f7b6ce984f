"""Merges the pieces of a batch into the target's tables, inside the caller's transaction.

Partitions and rounds come strictly in sequence. Within a round new and changed rows go first, referenced tables before
the ones that refer to them; then deletions, the other way round. Constraints that can be deferred are, until all is
merged: they alone serve tables that refer to each other in a circle. Where one of them refuses the outcome, and the row
that is the cause must be found, all is merged once more without waiting.

A row that takes over a unique value of a deleted one needs the opposite, so a round that fails that way is tried again
with its deletions first. (So does a row whose key equals a deleted one's without being the same text; where keys can do
that, their deletions always go first.)

PostgreSQL does not check the target's foreign keys under ``session_replication_role = replica``. Where it does,
deletions from tables that they point to wait for the end of the batch, or for the next change of such a table: rows
that refer to a deleted one may leave it in a later round, as a cascade at the source has them do
(``referencing_keys``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import assert_never

import psycopg
from psycopg import sql

from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.fold.blamed_positions import joined
from pgsluice.worker.sinks.postgres.fold.piece import (
    MOVES,
    Clearing,
    FoldedPartition,
    HandedText,
    ParkedText,
    Piece,
    PieceKind,
    StagedRows,
    inserts_together,
)
from pgsluice.worker.sinks.postgres.merge.missing_rows import count_missing, find_missing, merge_in_order
from pgsluice.worker.sinks.postgres.merge.referencing_keys import ReferencingKeys
from pgsluice.worker.sinks.postgres.merge.refused_rows import RowMerge
from pgsluice.worker.sinks.postgres.merge.staging import SessionStages, Stage, copy_text
from pgsluice.worker.sinks.postgres.merge.statements import identity_change_query, truncate_statement
from pgsluice.worker.sinks.postgres.own.handed_text import fetch_handed
from pgsluice.worker.sinks.postgres.own.known_tables import Missing
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.own.parked_text import fetch
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import MEETS_ANOTHER, DirectCopyError, PieceError
from pgsluice.worker.sinks.postgres.target.sequences import advance_statement, restart_sequences
from pgsluice.worker.sinks.postgres.target.table import TargetTable, identity_error

_WRITE_ORDER = (*MOVES, PieceKind.PATCH, PieceKind.INSERT, PieceKind.UPSERT, PieceKind.IN_ORDER)
_IN_ORDER = (PieceKind.MOVE_IN_ORDER, PieceKind.IN_ORDER)
_OVER_OTHERS = {PieceKind.INSERT: PieceKind.UPSERT, PieceKind.MOVE: PieceKind.MOVE_IN_ORDER}
"""The kind that applies rows whose keys the target has already."""
_JOINED = (PieceKind.MOVE, PieceKind.PATCH, PieceKind.UPSERT, PieceKind.DELETE)

_NO_SCANS = "SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)"


@dataclass(frozen=True, slots=True)
class Merge:
    """Merges over ``connection``, whose ``targets`` and ``stages`` are prepared for everything that the batch's pieces
    need.

    ``missing`` counts changes that met no row: not an error, the target may have been started without the row. Counts
    of an attempt that was rolled back are dropped. ``names_missing``: the rows have labels, and their positions are
    needed. ``row_merge`` merges as much as possible of a round that the target refuses; without it such a round raises.
    ``referencing`` knows the foreign keys that are checked; None without any. ``truncates``: tables are emptied by
    TRUNCATE, if the target allows it. ``left_out`` are the positions of labelled rows that are not merged.
    """

    connection: Connection
    targets: Mapping[Table, TargetTable]
    stages: SessionStages
    row_merge: RowMerge | None = None
    referencing: ReferencingKeys | None = None
    names_missing: bool = False
    truncates: bool = True
    missing: Missing = field(default_factory=Missing)
    left_out: Sequence[Position] = ()

    def apply(self, partitions: Sequence[FoldedPartition]) -> None:
        """Raises PieceError, DirectCopyError, or TerminalError for what a target table cannot do."""
        looking = [piece for folded in partitions for piece in folded.pieces if piece.kind in _JOINED]
        if looking and all(isinstance(piece.content, bytes) for piece in looking):
            # A temporary table has no statistics; the guess for it is large enough to make a scan of the target seem
            # cheap.
            self.connection.execute(_NO_SCANS)
        if self.row_merge is None:
            self._apply_partitions(inserts_together(partitions))
            return
        before = self.missing.copy()
        try:
            self._apply_or_refuse(partitions, self.row_merge)
        except PieceError as error:
            if self.row_merge.rejections or not error.concerns_rows:
                raise
            # A check that waits cannot identify the row that it refuses. Successes of tables while it waited stay noted
            # in ``refusals``: rows that go only together are all refused now, which is no fault of their tables.
            self._count_again_from(before)
            self._apply_or_refuse(partitions, replace(self.row_merge, checks_at_once=True))
        if self.row_merge.rejections:
            self.row_merge.leave_out_few(lambda positions: self._takes_without(partitions, positions))

    def _apply_or_refuse(self, partitions: Sequence[FoldedPartition], row_merge: RowMerge) -> None:
        """Applies ``partitions``; nothing of them where rows are refused."""
        with self.connection.transaction():
            replace(self, row_merge=row_merge)._apply_partitions(partitions)
            if row_merge.rejections:
                raise psycopg.Rollback

    def _takes_without(self, partitions: Sequence[FoldedPartition], positions: Sequence[Position]) -> bool:
        """Returns whether the target takes the batch without the changes at ``positions``; nothing of it stays."""
        trial = replace(self, row_merge=None, left_out=positions, missing=Missing())
        try:
            with self.connection.transaction():
                trial._apply_partitions(partitions)
                raise psycopg.Rollback
        except PieceError as error:
            if not error.concerns_rows:
                raise
            return False
        return True

    def _apply_partitions(self, partitions: Sequence[FoldedPartition]) -> None:
        """Merges the partitions. If rows were refused nothing is applied, and no deferred check that may have waited
        for them runs."""
        at_once = self.row_merge is not None and self.row_merge.checks_at_once
        self.connection.execute(f"SET CONSTRAINTS ALL {'IMMEDIATE' if at_once else 'DEFERRED'}")
        if self.referencing is not None:
            self.referencing.begin()
        waiting: list[Piece] = []
        for folded in partitions:
            if folded.clearings:
                self._merge_waiting(waiting)
                waiting = []
                self._clear(folded.clearings)
            for _, grouped in itertools.groupby(folded.pieces, key=lambda piece: piece.round):
                waiting = self._merge_but_waiting(list(grouped), waiting)
        self._merge_waiting(waiting)
        if self.row_merge is not None and self.row_merge.rejections:
            return
        if self.referencing is not None:
            self.referencing.check_noted()
        self._check_deferred(list(self.targets))

    def _merge_but_waiting(self, pieces: list[Piece], waiting: list[Piece]) -> list[Piece]:
        """Merges a round, except its deletions that wait; returns all that wait then. ``waiting`` are from earlier
        rounds."""
        now = [piece for piece in pieces if not self._waits(piece)]
        later = [piece for piece in pieces if self._waits(piece)]
        if {self.targets[piece.table].oid for piece in now} & {self.targets[piece.table].oid for piece in waiting}:
            self._merge_waiting(waiting)
            waiting = []
        return self._merge_before(now, [*waiting, *later])

    def _merge_before(self, pieces: list[Piece], waiting: list[Piece]) -> list[Piece]:
        """Merges ``pieces``; returns the deletions that still wait: none, where a row takes over a unique value of a deleted
        one."""
        if not waiting:
            self._merge_round(pieces)
            return []
        before = self.missing.copy()
        try:
            with self.connection.transaction():
                self._merge_as_one(pieces)
        except PieceError as error:
            self._count_again_from(before)
            if isinstance(error.cause, MEETS_ANOTHER):
                self._merge_waiting(waiting)
                waiting = []
            elif self.row_merge is None or not error.concerns_rows:
                raise
            self._merge_round(pieces)
        return waiting

    def _waits(self, piece: Piece) -> bool:
        """Returns whether it deletes rows that checked foreign keys may point to."""
        if self.referencing is None or piece.kind is not PieceKind.DELETE:
            return False
        try:
            return self.referencing.point_to(self.targets[piece.table])
        except psycopg.Error as error:
            raise PieceError(piece.table, error, has_rows=False) from None

    def _merge_waiting(self, waiting: Sequence[Piece]) -> None:
        """Merges deletions in as few rounds as there can be: rows that go together may refer to each other."""
        texts: dict[Table, list[Piece]] = {}
        rounds: list[list[Piece]] = []
        for piece in waiting:
            if isinstance(piece.content, bytes):
                texts.setdefault(piece.table, []).append(piece)
        others = [piece for piece in waiting if not isinstance(piece.content, bytes)]
        for piece in [joined(pieces, labelled=self.row_merge is not None) for pieces in texts.values()] + others:
            free = (each for each in rounds if piece.table not in {other.table for other in each})
            found = next(free, None)
            if found is None:
                rounds.append([piece])
            else:
                found.append(piece)
        for pieces in rounds:
            self._merge_round(pieces)

    def _check_deferred(self, tables: Sequence[Table]) -> None:
        """Checks deferred constraints now: at the commit it would be too late to name the table."""
        try:
            self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except psycopg.Error as error:
            named = [table for table in tables if table.name == error.diag.table_name]
            raise PieceError((named or tables)[0], error) from None

    def _clear(self, clearings: Sequence[Clearing]) -> None:
        """TRUNCATE is refused where a deferred check waits, and for a table that others refer to, even if none of their rows
        does. DELETE has the same outcome, and takes longer."""
        if not clearings:
            return
        tables = [self.targets[clearing.table] for clearing in clearings]
        restart_identity = any(clearing.restart_identity for clearing in clearings)
        try:
            if self.truncates and self._truncate(tables, restart_identity=restart_identity):
                return
            order, _ = self._referenced_first(clearing.table for clearing in clearings)
            for target in sorted(tables, key=lambda target: order[target.table], reverse=True):
                self._delete_all(target, restart_identity=restart_identity)
        except psycopg.Error as error:
            raise PieceError(clearings[0].table, error, has_rows=False) from None

    def _truncate(self, tables: Sequence[TargetTable], *, restart_identity: bool) -> bool:
        """Returns whether the target let it."""
        try:
            with self.connection.transaction():
                self.connection.execute(truncate_statement(tables, restart_identity=restart_identity))
        except (psycopg.errors.ObjectInUse, psycopg.errors.FeatureNotSupported):
            return False
        return True

    def _delete_all(self, target: TargetTable, *, restart_identity: bool) -> None:
        self.connection.execute(sql.SQL("DELETE FROM {}").format(target.rows))
        if restart_identity:
            restart_sequences(self.connection, target.oid)

    def _merge_round(self, pieces: list[Piece]) -> None:
        before = self.missing.copy()
        if self.row_merge is None:
            self._merge_as_one(pieces)
        elif not self.row_merge.takes(pieces, lambda: self._merge_as_one(pieces)):
            self._count_again_from(before)
            self.row_merge.apply(self._orders(pieces)[0], self._merge)

    def _merge_as_one(self, pieces: list[Piece]) -> None:
        """Merges a round, all of it or nothing."""
        if pieces:
            self._apply_round(*self._orders(pieces))

    def _orders(self, pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
        """Returns the sequence of a round's pieces, and the other one, with its deletions first."""
        order, is_circle = self._referenced_first({piece.table for piece in pieces})

        def place(piece: Piece) -> tuple[bool, int, int]:
            """Returns the sort key; in a circle, rows that a foreign key's action changes have to be written after it,
            too."""
            return is_circle and piece.kind not in MOVES, order[piece.table], _WRITE_ORDER.index(piece.kind)

        writes = sorted((piece for piece in pieces if piece.kind is not PieceKind.DELETE), key=place)
        deletes = [piece for piece in pieces if piece.kind is PieceKind.DELETE]
        deletes.sort(key=lambda piece: order[piece.table], reverse=True)
        early = [piece for piece in deletes if not self.targets[piece.table].has_exact_key]
        late = [piece for piece in deletes if self.targets[piece.table].has_exact_key]
        return early + writes + late, deletes + writes

    def _apply_round(self, in_order: Sequence[Piece], deletes_first: Sequence[Piece]) -> None:
        if in_order == deletes_first:
            self._apply_all(in_order)
            return
        before = self.missing.copy()
        try:
            with self.connection.transaction():
                self._apply_all(in_order)
        except PieceError as error:
            if not isinstance(error.cause, MEETS_ANOTHER):
                raise
            self._count_again_from(before)
            self._apply_all(deletes_first)

    def _count_again_from(self, before: Missing) -> None:
        self.missing.clear()
        self.missing.update(before)

    def _referenced_first(self, tables: Iterable[Table]) -> tuple[dict[Table, int], bool]:
        """Returns a place for each table, after the places of the tables it refers to. Tables that refer to each other
        in a circle get places in some sequence: only deferred constraints can serve them. Also returns whether there is
        a circle."""
        targets = [self.targets[table] for table in tables]
        present = {target.oid for target in targets}
        references = {target.oid: (target.references & present) - {target.oid} for target in targets}
        is_circle = False
        try:
            places = list(TopologicalSorter(references).static_order())
        except CycleError:
            places, is_circle = sorted(present), True
        return {target.table: places.index(target.oid) for target in targets}, is_circle

    def _apply_all(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            try:
                self._apply(piece)
            except psycopg.Error as error:
                raise PieceError(piece.table, error) from None

    def _apply(self, piece: Piece) -> None:
        match piece.content:
            case StagedRows(name=name):
                self._merge(piece, self.stages.of(own_table(name), self.targets[piece.table]))
            case ParkedText() as parked:
                self._apply_text(piece, [fetch(self.connection, parked)])
            case HandedText() as handed:
                self._apply_text(piece, fetch_handed(handed))
            case bytes() as text:
                self._apply_text(piece, [text])
            case unreachable:
                assert_never(unreachable)

    def _apply_text(self, piece: Piece, text: Iterable[bytes]) -> None:
        target = self.targets[piece.table]
        if self.stages.goes_straight(piece, target):
            self._copy(target, text)
            return
        stage = self.stages[target, piece.kind]
        stage.fill(self.connection, text)
        self._merge(piece, stage)
        self.stages.empty(stage, piece.text_bytes)

    def _copy(self, target: TargetTable, text: Iterable[bytes]) -> None:
        """Copies without a stage, and without a savepoint: a row that meets another one is rare, and makes the batch
        merge again."""
        try:
            copy_text(self.connection, target.copy_statement, text)
        except MEETS_ANOTHER:
            raise DirectCopyError from None

    def _merge(self, piece: Piece, stage: Stage) -> None:
        kind = piece.kind
        if self.left_out:
            left = sql.SQL("(SELECT * FROM {} WHERE position <> ALL ({}))")
            positions = sql.Literal([str(position) for position in self.left_out])
            stage = self.stages.of(left.format(stage.identifier, positions), stage.target)
        if kind is PieceKind.MOVE and not stage.target.has_exact_key:
            kind = PieceKind.MOVE_IN_ORDER  # keys that differ here may be the same one at the target
        if self.names_missing and kind in _IN_ORDER:
            self.missing.update(merge_in_order(self.connection, piece, stage, lambda rows: self._run(piece, rows, kind)))
            return
        found = find_missing(self.connection, piece, stage) if self.names_missing else None
        if kind in _OVER_OTHERS and piece.table.key:
            try:
                with self.connection.transaction():
                    missing = self._run(piece, stage, kind)
            except MEETS_ANOTHER:
                missing = self._run(piece, stage, _OVER_OTHERS[kind])
        else:
            missing = self._run(piece, stage, kind)
        if found is not None:
            self.missing.update(found)
        elif missing > 0:
            self.missing.update(count_missing(self.connection, piece, missing))

    def _run(self, piece: Piece, stage: Stage, kind: PieceKind) -> int:
        """Returns how many of the piece's changes met no row."""
        check = identity_change_query(stage.target, kind, stage.identifier) if stage.target.fixed else None
        if check is not None and self.connection.execute(check).rowcount:
            raise identity_error(stage.target)
        if self.referencing is not None:
            self.referencing.note_changed(stage.target, kind, stage.identifier, self.targets.values())
            if kind is PieceKind.DELETE:
                self.referencing.refuse_deletions(stage.target, stage.identifier)
        touched = 0
        for statement in stage.statements(kind):
            if touched < piece.rows:
                touched += self.connection.execute(statement).rowcount
        if self.referencing is not None:
            self.referencing.forget_applied(stage.target, kind, stage.identifier)
        if kind is not PieceKind.DELETE:
            for sequence in stage.target.sequences:
                self.connection.execute(advance_statement(sequence, stage.identifier, f"c{sequence.column + 1}"))
        match kind:
            case PieceKind.PATCH | PieceKind.MOVE | PieceKind.DELETE:
                return piece.rows - piece.absent - touched
            case PieceKind.IN_ORDER | PieceKind.MOVE_IN_ORDER:
                found = self.connection.execute("SELECT current_setting('pgsluice.missing')").fetchone()
                return int(found[0]) if found else 0
            case PieceKind.INSERT | PieceKind.UPSERT:
                return 0
            case unreachable:
                assert_never(unreachable)
