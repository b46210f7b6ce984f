"""Changes that meet no row at the target: how they are counted, and which they are in a pass whose rows have labels.

A statement tells how many rows it touched, not which. Where that is to be known, a batch with such changes is written once more,
with the labels that ``BlamedPositions`` adds, and before a piece is merged its rows are looked for. Rows that came and went are
the last ones of a piece, and are never missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import assert_never

from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.postgres.fold.piece import Piece, PieceKind
from pgsluice.worker.sinks.postgres.merge.staging import Stage
from pgsluice.worker.sinks.postgres.merge.statements import unmatched_query
from pgsluice.worker.sinks.postgres.own.known_tables import MissedChange, Missing
from pgsluice.worker.sinks.postgres.target.connection import Connection


class OnMissing(StrEnum):
    """What ``on-missing-row`` says."""

    COUNT = "count"
    DEAD_LETTER = "dead-letter"
    STOP = "stop"

    @classmethod
    def of(cls, value: str, *, is_replay: bool) -> OnMissing:
        """A letter that is replayed is refused again: the worker of whoever replays it must not end for that."""
        return cls.DEAD_LETTER if is_replay and value == cls.STOP else cls(value)


def missing_rejection(missed: MissedChange) -> Rejection:
    assert missed.position is not None, "the rows had labels"
    return Rejection(missed.position, f"the {_kind(missed)} met no row at the target")


def missing_error(missed: Sequence[MissedChange]) -> TerminalError:
    """For the first of them, as the source committed them."""
    first = min(missed, key=lambda each: each.position or Position(LSN(0), 0))
    table = ".".join(first.table.source_name)
    more = f", and {len(missed) - 1} changes more of the batch met none" if len(missed) > 1 else ""
    return TerminalError(
        f"the {_kind(first)} of table '{table}' at {first.position} met no row at the target{more}: source and target differ",
        f"nothing of the batch was applied; 'pgsluice messages --from {first.position} --limit 1' shows the change. Put its row"
        f" there, or copy the table again ('pgsluice tables recopy {table}'), or say on-missing-row: count; then start again",
    )


def _kind(missed: MissedChange) -> str:
    return "delete" if missed.is_delete else "update"


def count_missing(connection: Connection, piece: Piece, missing: int) -> Missing:
    """So many of a piece that was merged just now."""
    deletes = 0
    if piece.kind is PieceKind.DELETE:
        deletes = missing
    elif piece.kind is PieceKind.IN_ORDER:
        found = connection.execute("SELECT current_setting('pgsluice.missing_deletes')").fetchone()
        deletes = int(found[0]) if found else 0
    counts = {True: deletes, False: missing - deletes}
    return +Missing({MissedChange(piece.table, is_delete, None): count for is_delete, count in counts.items()})


def find_missing(connection: Connection, piece: Piece, stage: Stage) -> Missing:
    """Those of a piece that is to be merged; its stage has labels. Not of one whose rows are merged in order."""
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
    """Merges a piece in the order of its rows, which have labels, and finds those that met no row: in halves, because what a row
    meets depends on all before it. ``merge`` returns how many met none."""
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
