"""Changes that meet no row at the target: their number, their positions, and their treatment.

A statement returns how many rows it touched, not which. Where positions are needed, the worker writes a batch with such
changes once more, with the labels that ``BlamedPositions`` adds, and before it merges a piece it looks for the piece's
rows. Rows that came and went are the last ones of a piece, and are never missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import assert_never

from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.sinks.abilities import MayLeaveOut
from pgsluice.worker.sinks.postgres.fold.piece import Piece, PieceKind
from pgsluice.worker.sinks.postgres.merge.staging import Stage
from pgsluice.worker.sinks.postgres.merge.statements import unmatched_query
from pgsluice.worker.sinks.postgres.own.known_tables import MissedChange, Missing
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.sink import MissedChanges


class OnMissing(StrEnum):
    """The choices of ``on-missing-row``."""

    COUNT = "count"
    DEAD_LETTER = "dead-letter"
    STOP = "stop"


class MissingRowPolicy:
    """Decides by ``on-missing-row`` about changes that met no row. Where a rule or route leaves rows out, they are
    correct, and only counted."""

    def __init__(self, on_missing_row: str, *, is_replay: bool) -> None:
        """Sets the policy. In a replay a change is refused instead of ending the worker: the process that replays it
        must not end."""
        on_missing = OnMissing(on_missing_row)
        self._on_missing = OnMissing.DEAD_LETTER if is_replay and on_missing is OnMissing.STOP else on_missing
        self._may_leave_out: MayLeaveOut = lambda _oid, _source: False

    def expect_missing(self, may_leave_out: MayLeaveOut) -> None:
        """Implements ``MissingRowSink``."""
        self._may_leave_out = may_leave_out

    def asks_which(self, missing: Missing, counted: Sequence[MissedChanges]) -> bool:
        """Returns whether the positions of ``missing`` have to be found. Where they are only counted, those of a table
        are found once; ``counted`` are the ones of earlier batches.
        """
        tables = {(each.table.oid, (each.table.schema, each.table.name)) for each in self._faults(missing)}
        if self._on_missing is OnMissing.COUNT:
            tables -= {(each.oid, each.place) for each in counted}
        return bool(tables)

    def judge(self, missing: Missing) -> None:
        """Takes ``missing`` with their positions. Raises RejectedChanges or TerminalError unless they are only counted."""
        faults = self._faults(missing)
        if not faults:
            return
        match self._on_missing:
            case OnMissing.COUNT:
                pass
            case OnMissing.DEAD_LETTER:
                raise RejectedChanges([_rejection(each) for each in faults])
            case OnMissing.STOP:
                raise _error(faults)
            case unreachable:
                assert_never(unreachable)

    def _faults(self, missing: Missing) -> list[MissedChange]:
        return [each for each in missing if not self._may_leave_out(each.table.oid, each.table.source_name)]


def _rejection(missed: MissedChange) -> Rejection:
    assert missed.position is not None, "the rows had labels"
    return Rejection(missed.position, f"the {_kind(missed)} met no row at the target")


def _error(missed: Sequence[MissedChange]) -> TerminalError:
    """Returns the error, which names the first of them in the source's commit order."""
    first = min(missed, key=lambda each: each.position or Position(LSN(0), 0))
    table = ".".join(first.table.source_name)
    more = f", nor did {len(missed) - 1} other changes of the batch" if len(missed) > 1 else ""
    return TerminalError(
        f"the {_kind(first)} of table '{table}' at {first.position} met no row at the target{more}: source and target differ",
        f"nothing of the batch was applied; 'pgsluice messages --from {first.position} --limit 1' shows the change. Insert its"
        f" row at the target, or copy the table again ('pgsluice tables resync {table}'), or set on-missing-row: count; then"
        " start again",
    )


def _kind(missed: MissedChange) -> str:
    return "delete" if missed.is_delete else "update"


def count_missing(connection: Connection, piece: Piece, missing: int) -> Missing:
    """Splits ``missing``, the number of changes of a piece that was merged just now, into updates and deletes."""
    deletes = 0
    if piece.kind is PieceKind.DELETE:
        deletes = missing
    elif piece.kind is PieceKind.IN_ORDER:
        found = connection.execute("SELECT current_setting('pgsluice.missing_deletes')").fetchone()
        deletes = int(found[0]) if found else 0
    counts = {True: deletes, False: missing - deletes}
    return +Missing({MissedChange(piece.table, is_delete, None): count for is_delete, count in counts.items()})


def find_missing(connection: Connection, piece: Piece, stage: Stage) -> Missing:
    """Finds them in a piece before it is merged; its stage has labels. ``merge_in_order`` finds those of pieces in order."""
    match piece.kind:
        case PieceKind.PATCH | PieceKind.MOVE | PieceKind.DELETE:
            query = unmatched_query(stage.target, piece.kind, stage.identifier, piece.absent)
            positions = [Position.parse(position) for (position,) in connection.execute(query).fetchall()]
            return Missing(MissedChange(piece.table, piece.kind is PieceKind.DELETE, position) for position in positions)
        case PieceKind.INSERT | PieceKind.UPSERT | PieceKind.MOVE_IN_ORDER | PieceKind.IN_ORDER:
            return Missing()
        case unreachable:
            assert_never(unreachable)


def merge_in_order(connection: Connection, piece: Piece, stage: Stage, merge: Callable[[Stage], int]) -> Missing:
    """Merges a piece row by row in sequence, with labels, and finds rows that met none: in halves, because a row's
    match depends on all before it. ``merge`` returns how many met none."""
    found = Missing()
    operation = "op" if piece.kind is PieceKind.IN_ORDER else "'U'"

    def merge_range(low: int, high: int) -> None:
        rows = sql.SQL("(SELECT * FROM {} AS s WHERE n >= {} AND n < {})").format(stage.identifier, low, high)
        try:
            with connection.transaction():
                missing = merge(Stage(rows, stage.target, has_merge=False))
                if missing and high - low > 1:
                    raise _MissedError
        except _MissedError:
            middle = (low + high) // 2
            merge_range(low, middle)
            merge_range(middle, high)
            return
        if missing:
            query = sql.SQL("SELECT {}, position FROM {} AS s").format(sql.SQL(operation), rows)
            for kind, position in connection.execute(query).fetchall():
                found[MissedChange(piece.table, kind == "D", Position.parse(position))] += 1

    bounds = connection.execute(sql.SQL("SELECT min(n), max(n) + 1 FROM {} AS s").format(stage.identifier)).fetchone()
    if bounds is not None and bounds[0] is not None:
        merge_range(*bounds)
    return found


class _MissedError(Exception):
    """Ends a range that is cut."""
