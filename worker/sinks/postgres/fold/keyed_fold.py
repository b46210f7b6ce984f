"""Folds the changes of a table with a key: what remains of each row at the end of a round. Pure.

The entry of a key, by its changes in the round:

    a tuple     the whole row, from an insert, an update that sent everything, or one completed from an earlier image
    _Patch      an update that left out unchanged, unknown values
    _Move       the row came here from another key: that key has _State.MOVED
    _State.DELETED, _State.PASSED      the row is gone; PASSED when it may have come in the same round

A row whose key changes stays the row it is: the target may contain more of it than the source, and its other tables may
refer to it. So changes of keys stay a separate list, in commit order, and a round applies them before everything else.
A row may leave a key that another one of the list has left or comes to; whatever else touches one of their keys begins
a new round.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, TableChanges
from pgsluice.shared.rows.copy_text import encode_rows
from pgsluice.shared.rows.plain_rows import PlainRows
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.sinks.postgres.fold.piece import Piece, PieceKind

Row = tuple[Value, ...]
Key = Any
"""A value when the key has one column, else a tuple of values: cheaper to make and to hash than tuples of one."""

_NEVER_TOASTED = frozenset(
    {16, 18, 19, 20, 21, 23, 26, 27, 28, 29, 600, 601, 603, 628, 700, 701, 718, 774, 790, 829, 1082, 1083, 1114, 1184, 1186}
    | {1266, 2950, 3220}
)
"""OIDs of built-in types of fixed size (pg_type.typlen > 0): their values are always sent."""


class _State(enum.Enum):
    DELETED = "deleted"
    PASSED = "passed"
    MOVED = "moved"


@dataclass(slots=True)
class _Patch:
    row: Row


@dataclass(slots=True)
class _Move:
    old_key: Key
    row: Row


_Entry = Row | _Patch | _Move | _State


class KeyedFold:
    """The changes of one version of a table in one round (``fold.TableFold``)."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._entries: dict[Key, _Entry] = {}
        self._key = table.key
        self._key_of: Callable[[Sequence[Any]], Key] = itemgetter(*self._key)
        self._toasted = [i for i, column in enumerate(table.columns) if column.type_oid not in _NEVER_TOASTED]
        self._whole_rows_only = True
        self._moves: list[_Move] = []
        self._is_chained = False
        """True if a row came to a key that another one had left."""

    def add(self, changes: TableChanges, start: int) -> int:
        """Takes rows from ``start`` on, as a ``TableFold``; returns the first one that needs a new round."""
        unchanged = self._has_unchanged(changes)
        whole_rows = not unchanged and changes.old is None and DELETE not in changes.operations
        if start == 0 and whole_rows and not self._moves:
            self._entries.update(zip(self._keys(changes.new), zip(*changes.new, strict=True), strict=True))
            return len(changes)
        self._whole_rows_only = False
        return self._add_each(changes, start, unchanged)

    def _keys(self, columns: Sequence[Sequence[Value]]) -> Any:
        """Returns the key of each row, from the new or the old columns."""
        if len(self._key) == 1:
            return columns[self._key[0]]
        return zip(*(columns[i] for i in self._key), strict=True)

    def _has_unchanged(self, changes: TableChanges) -> bool:
        """Joining is the fastest way to ask: it fails on anything but bytes, and ``filter`` takes the NULLs out."""
        if isinstance(changes.new, PlainRows):
            return False
        try:
            for i in self._toasted:
                b"".join(filter(None, changes.new[i]))  # type: ignore[arg-type]
        except TypeError:
            return True
        return False

    def _add_each(self, changes: TableChanges, start: int, unchanged: bool) -> int:
        operations, kinds = changes.operations, changes.old_kinds
        rows: list[Row] = list(zip(*changes.new, strict=True))
        old_rows: list[Row] | None = None if changes.old is None else list(zip(*changes.old, strict=True))
        key_of = self._key_of
        for i in range(start, len(changes)):
            operation, row = operations[i], rows[i]
            old_row = old_rows[i] if old_rows is not None and kinds is not None and kinds[i] != NO_OLD_ROW else None
            if operation == INSERT:
                taken = self._put(key_of(row), row)
            elif operation == DELETE:
                taken = self._delete(key_of(self._required(old_row)))
            else:
                if unchanged and old_row is not None and UNCHANGED in row:
                    row = self._complete_from_old(row, old_row, kinds[i] if kinds is not None else NO_OLD_ROW)
                taken = self._update(row, old_row, whole=not (unchanged and UNCHANGED in row))
            if not taken:
                return i
        return len(changes)

    def _required(self, old_row: Row | None) -> Row:
        if old_row is None:
            raise TerminalError(
                f"a delete of table '{self.table.qualified_name}' does not identify its row",
                "give the source table a primary key, or a replica identity that holds its key, and copy it again, for the"
                f" changes in the stream lack it: pgsluice tables resync {'.'.join(self.table.source_name)}",
            )
        return old_row

    def _complete_from_old(self, row: Row, old_row: Row, kind: int) -> Row:
        """An old image holds the values of toasted columns that the new one leaves out, as far as it holds the column."""
        columns = self.table.columns
        return tuple(
            old_row[i] if value is UNCHANGED and (kind == OLD_ROW or columns[i].identity_key) else value
            for i, value in enumerate(row)
        )

    def _update(self, row: Row, old_row: Row | None, *, whole: bool) -> bool:
        key = self._key_of(row)
        old_key = key if old_row is None else self._key_of(old_row)
        if not whole and any(row[i] is UNCHANGED for i in self._key):
            raise TerminalError(
                f"an update of table '{self.table.qualified_name}' does not identify its row",
                "a part of the key was not sent; this is a defect of pgsluice, please report it",
            )
        if old_key == key:
            return self._put(key, row) if whole else self._patch(key, row)
        return self._move(old_key, key, row)

    def _put(self, key: Key, row: Row) -> bool:
        if self._moves:
            entry = self._entries.get(key)
            if entry is _State.MOVED:
                return False
            if type(entry) is _Move:
                entry.row = row
                return True
        self._entries[key] = row
        return True

    def _delete(self, key: Key) -> bool:
        entry = self._entries.get(key)
        if entry is _State.MOVED or type(entry) is _Move:
            return False
        passed = type(entry) is tuple or entry is _State.PASSED
        self._entries[key] = _State.PASSED if passed else _State.DELETED
        return True

    def _patch(self, key: Key, row: Row) -> bool:
        entry = self._entries.get(key)
        # a single kind: most rows are tuples, so that is asked before anything else
        if entry is None:
            self._entries[key] = _Patch(row)
        elif type(entry) is tuple:
            self._entries[key] = _over(entry, row)
        elif isinstance(entry, _Patch | _Move):
            entry.row = _over(entry.row, row)
        else:
            return False
        return True

    def _move(self, old_key: Key, key: Key, row: Row) -> bool:
        before, there = self._entries.get(old_key), self._entries.get(key)
        if isinstance(before, _State) or not (there is None or there is _State.MOVED):
            return False
        if type(before) is tuple:
            row = _over(before, row)
        elif isinstance(before, _Patch | _Move):
            row = _over(before.row, row)
        self._is_chained = self._is_chained or there is _State.MOVED or type(before) is _Move
        move = _Move(old_key, row)
        self._moves.append(move)
        self._entries[old_key] = _State.MOVED
        self._entries[key] = move
        return True

    def pieces(self, round_number: int) -> list[Piece]:
        """Returns the pieces by kind; kinds without rows are left out."""
        if self._whole_rows_only:
            return [self._piece(round_number, PieceKind.UPSERT, list(self._entries.values()))]
        rows: dict[PieceKind, list[Sequence[Value]]] = {kind: [] for kind in PieceKind}
        rows[PieceKind.MOVE_IN_ORDER if self._is_chained else PieceKind.MOVE] = [
            (b"%d" % n, *move.row, _unchanged_bits(move.row), *self._key_values(move.old_key))
            for n, move in enumerate(self._moves)
        ]
        absent = 0
        for key, entry in self._entries.items():
            if type(entry) is tuple:
                rows[PieceKind.UPSERT].append(entry)
            elif isinstance(entry, _Patch):
                rows[PieceKind.PATCH].append((*entry.row, _unchanged_bits(entry.row)))
            elif entry is _State.DELETED or entry is _State.PASSED:
                rows[PieceKind.DELETE].append(self._key_values(key))
                absent += entry is _State.PASSED
        return [
            self._piece(round_number, kind, rows[kind], absent if kind is PieceKind.DELETE else 0)
            for kind in PieceKind
            if rows[kind]
        ]

    def _key_values(self, key: Key) -> tuple[Value, ...]:
        return key if len(self._key) > 1 else (key,)

    def _piece(self, round_number: int, kind: PieceKind, rows: Sequence[Any], absent: int = 0) -> Piece:
        return Piece(self.table, round_number, kind, len(rows), absent, encode_rows(rows))


def _over(earlier: Row, later: Row) -> Row:
    """Returns the later image of a row, with the earlier one's values for UNCHANGED."""
    return tuple(before if after is UNCHANGED else after for before, after in zip(earlier, later, strict=True))


def _unchanged_bits(row: Row) -> bytes:
    return b"".join([b"1" if value is UNCHANGED else b"0" for value in row])
