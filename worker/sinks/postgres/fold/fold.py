"""Folds a partition's changes to pieces: at most one row per key, table and round. Pure.

    PartitionFold       rounds, truncations, one open fold per table
      InsertRun         only inserts so far: encoded at once, nothing to compare
      KeyedFold         a table with a key: the last image of each row (keyed_fold.py)
      OrderedFold       a table without a key: every change, in sequence

A fold takes rows until one of them cannot share its round (a key that has to change before another row may take it).
Then the round is closed for all tables, so that rounds are cuts in commit order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, assert_never

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pgoutput.messages import OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, DefinitionChange, MessageChanges, Part, TableChanges, Truncation
from pgsluice.shared.rows.copy_text import encode_columns, encode_rows
from pgsluice.shared.rows.plain_rows import PlainRows
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.sinks.postgres.fold.keyed_fold import KeyedFold
from pgsluice.worker.sinks.postgres.fold.piece import Clearing, FoldedPartition, Piece, PieceKind, TableName


class TableFold(Protocol):
    """The changes of one version of a table in one round."""

    table: Table

    def add(self, changes: TableChanges, start: int) -> int:
        """Takes the rows from ``start`` on; returns the first row that needs a new round, ``len(changes)`` when none does.
        A fold without rows takes at least one."""
        ...

    def pieces(self, round_number: int) -> list[Piece]: ...


class PartitionFold:
    """Takes the messages of a partition in commit order; ``finish`` returns the result.

    ``one_by_one``: nothing is folded, each change is a separate round (but consecutive inserts into a table share one),
    so that the target goes through the very states the source went through.
    """

    def __init__(self, *, one_by_one: bool = False) -> None:
        self._one_by_one = one_by_one
        self._round = 0
        self._open: dict[TableName, TableFold] = {}
        self._closed: list[Piece] = []
        self._definitions: list[PublishedDefinition] = []
        self._clearings: dict[TableName, Clearing] = {}
        self._changed: set[TableName] = set()
        self._sources: dict[int, TableName] = {}
        """The source's last names of tables."""

    def add(self, message: MessageChanges) -> None:
        for part in _each_change(message) if self._one_by_one else message.parts:
            match part:
                case TableChanges():
                    self._add_changes(part)
                case Truncation():
                    self._truncate(part)
                case DefinitionChange(definition=definition, is_copied=is_copied):
                    self._definitions += [] if is_copied else [definition]
                case unreachable:
                    assert_never(unreachable)

    def finish(self) -> FoldedPartition:
        """May be called once, after the last message."""
        self._close_round()
        folded = FoldedPartition(tuple(self._clearings.values()), tuple(self._closed), definitions=tuple(self._definitions))
        assert not folded.definitions or not (folded.clearings or folded.pieces), "a schema change is a separate partition"
        return folded

    def _add_changes(self, changes: TableChanges) -> None:
        start = 0
        while start < len(changes):
            start = self._fold_for(changes).add(changes, start)
            if start < len(changes):
                self._close_round()

    def _fold_for(self, changes: TableChanges) -> TableFold:
        table = changes.table
        name = (table.schema, table.name)
        if self._sources.setdefault(table.oid, table.source_name) != table.source_name:
            self._close_round()  # a renamed table may be the same one at the target
            self._sources[table.oid] = table.source_name
        if self._one_by_one and not isinstance(self._open.get(name), InsertRun):
            self._close_round()
        fold = self._open.get(name)
        if fold is not None and _differs(fold.table, table):
            self._close_round()
            fold = None
        only_inserts = _only_inserts(changes)
        if isinstance(fold, InsertRun) and not only_inserts:
            self._close_round()
            fold = None
        if not only_inserts and not self._one_by_one:
            self._changed.add(name)
        if fold is None:
            fold = self._open[name] = self._start(table, only_inserts=only_inserts and name not in self._changed)
        return fold

    def _start(self, table: Table, *, only_inserts: bool) -> TableFold:
        if only_inserts:
            return InsertRun(table)
        return KeyedFold(table) if table.key else OrderedFold(table)

    def _close_round(self) -> None:
        for fold in self._open.values():
            self._closed += fold.pieces(self._round)
        self._open.clear()
        self._round += 1

    def _truncate(self, truncation: Truncation) -> None:
        """Earlier rows of these tables do not matter any more, so the truncation moves before everything else: who refers to
        one of these tables is truncated with it, and nothing else depends on what they hold."""
        for table in truncation.tables:
            if self._sources.get(table.oid, table.source_name) != table.source_name:
                self._close_round()
            name = (table.schema, table.name)
            self._open.pop(name, None)
            self._closed = [piece for piece in self._closed if not _is_cleared(piece.table, table)]
            earlier = self._clearings.get(name)
            restart = truncation.restart_identity or (earlier is not None and earlier.restart_identity)
            self._clearings[name] = Clearing(table, restart)


def _is_cleared(table: Table, truncated: Table) -> bool:
    """Returns whether a truncation empties ``table``: by its name, or because the source called it otherwise before."""
    is_earlier_name = table.oid == truncated.oid and table.origin is None and truncated.origin is None
    return is_earlier_name or (table.schema, table.name) == (truncated.schema, truncated.name)


def _differs(one: Table, other: Table) -> bool:
    """Returns whether tables of one name are two tables, or versions whose rows are not alike."""
    return one.oid != other.oid or one.replica_identity is not other.replica_identity or one.columns != other.columns


def _each_change(message: MessageChanges) -> Sequence[Part]:
    """Returns the message's changes one by one, in commit order."""
    changes: list[tuple[int, Part]] = []
    for part in message.parts:
        match part:
            case TableChanges():
                changes += zip(part.change_indexes, _rows_of(part), strict=True)
            case Truncation() | DefinitionChange():
                changes.append((part.change_index, part))
            case unreachable:
                assert_never(unreachable)
    return [change for _, change in sorted(changes, key=lambda indexed: indexed[0])]


def _rows_of(part: TableChanges) -> Iterator[TableChanges]:
    for row in range(len(part)):
        yield TableChanges(
            part.table,
            part.operations[row : row + 1],
            part.change_indexes[row : row + 1],
            [column[row : row + 1] for column in part.new],
            None if part.old is None else [column[row : row + 1] for column in part.old],
            None if part.old_kinds is None else part.old_kinds[row : row + 1],
        )


def _only_inserts(changes: TableChanges) -> bool:
    return changes.operations.count(INSERT) == len(changes)


def _copy_text(changes: TableChanges, start: int) -> bytes:
    if start == 0 and isinstance(changes.new, PlainRows):
        return changes.new.text
    return encode_columns([column[start:] for column in changes.new] if start else changes.new, len(changes) - start)


class InsertRun:
    """Rows that nothing but inserts touched so far. They are kept encoded, a fifth of what they take as objects."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._texts: list[bytes] = []
        self._rows = 0

    def add(self, changes: TableChanges, start: int) -> int:
        self._texts.append(_copy_text(changes, start))
        self._rows += len(changes) - start
        return len(changes)

    def pieces(self, round_number: int) -> list[Piece]:
        return [Piece(self.table, round_number, PieceKind.INSERT, self._rows, 0, b"".join(self._texts))]


class OrderedFold:
    """Every change of a table without a key. Old images are whole rows: that is what FULL replica identity is for."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._rows: list[list[Value]] = []

    def add(self, changes: TableChanges, start: int) -> int:
        nothing: tuple[Value, ...] = (None,) * len(self.table.columns)
        for row in range(start, len(changes)):
            operation = changes.operations[row]
            new = nothing if operation == DELETE else tuple(column[row] for column in changes.new)
            old = nothing if operation == INSERT else self._old_row(changes, row)
            if operation == UPDATE:
                new = tuple(before if after is UNCHANGED else after for after, before in zip(new, old, strict=True))
            self._rows.append([b"%d" % len(self._rows), b"%c" % operation, *new, *old])
        return len(changes)

    def _old_row(self, changes: TableChanges, row: int) -> tuple[Value, ...]:
        if changes.old is None or changes.old_kinds is None or changes.old_kinds[row] != OLD_ROW:
            raise TerminalError(
                f"an update or delete of table '{self.table.qualified_name}' does not identify its row",
                "give the source table, and its root where it is a partition, a primary key or a replica identity, and copy it"
                f" again, for the changes in the stream lack it: pgsluice tables resync {'.'.join(self.table.source_name)}",
            )
        return tuple(column[row] for column in changes.old)

    def pieces(self, round_number: int) -> list[Piece]:
        return [Piece(self.table, round_number, PieceKind.IN_ORDER, len(self._rows), 0, encode_rows(self._rows))]
