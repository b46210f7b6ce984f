"""Finds the source change to blame for a folded row: the last one of its key in the partition, or the first.

Needed only while refused rows are searched: then each row that is staged carries its number in its piece and a
position, in two more columns. When the last change of a row is taken out and what remains is still refused, the next
pass takes out the one before it, until the row is as the target could take it. That may take as many passes as the row
has changes, so after some passes the first change is blamed: then all of the row's changes in the partition are taken
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from pgsluice.shared.pgoutput.messages import NO_OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, DefinitionChange, MessageChanges, TableChanges, Truncation
from pgsluice.shared.rows.copy_text import encode_columns, join_fields, join_lines, split_fields, split_lines
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.sinks.postgres.fold.piece import FoldedPartition, Piece, PieceKind, TableName


class BlamedPositions:
    """Takes the messages that a partition's fold takes. Rows are known by the COPY text of their key. ``first``: blames the
    first change."""

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._rows: dict[TableName, dict[bytes, Position]] = {}
        self._came: dict[TableName, set[bytes]] = {}
        """Keys whose rows are written whole: deleted later, they may be of no row at the target."""

    def add(self, message: MessageChanges) -> None:
        positions = [t.position(index) for t in message.transactions for index in range(t.first_change, t.end_change)]
        for part in message.parts:
            match part:
                case TableChanges():
                    self._add_part(part, positions)
                case Truncation() | DefinitionChange():
                    pass  # no row can be blamed on it
                case unreachable:
                    assert_never(unreachable)

    def label(self, folded: FoldedPartition) -> FoldedPartition:
        """Returns ``folded``, whose pieces all hold text, with two more columns: the row's number from 0 and its
        position. Keys that are deleted and may be of no row are the last ones of their piece."""
        return replace(folded, pieces=tuple(self._labelled(piece) for piece in folded.pieces))

    def _add_part(self, part: TableChanges, positions: Sequence[Position]) -> None:
        name = part.table.schema, part.table.name
        rows, came = self._rows.setdefault(name, {}), self._came.setdefault(name, set())
        new = _key_texts(part.table, _whole(part), len(part))
        old = new if part.old is None else _key_texts(part.table, part.old, len(part))
        for row, (operation, index) in enumerate(zip(part.operations, part.change_indexes, strict=True)):
            position = positions[index]
            if operation != DELETE:
                self._blame(rows, new[row], position)
                if operation == INSERT or all(column[row] is not UNCHANGED for column in part.new):
                    came.add(new[row])
            if part.old_kinds is not None and part.old_kinds[row] != NO_OLD_ROW:
                self._blame(rows, old[row], position)

    def _blame(self, rows: dict[bytes, Position], key: bytes, position: Position) -> None:
        if not self._first or key not in rows:
            rows[key] = position

    def _labelled(self, piece: Piece) -> Piece:
        assert isinstance(piece.content, bytes)
        rows = self._rows[piece.table.schema, piece.table.name]
        has_fields = bool(piece.table.columns) or piece.kind is PieceKind.IN_ORDER
        before_labels = b"\t" if has_fields else b""
        lines = split_lines(piece.content)
        if piece.kind is PieceKind.DELETE:
            came = self._came[piece.table.schema, piece.table.name]
            lines.sort(key=came.__contains__)
        labelled = [
            b"%b%b%d\t%b" % (line, before_labels, n, str(rows[_key_of(piece, line)]).encode()) for n, line in enumerate(lines)
        ]
        return replace(piece, content=join_lines(labelled))


def joined(pieces: Sequence[Piece], *, labelled: bool) -> Piece:
    """Joins several pieces of one table and kind that hold text into one. Rows with labels are numbered again; rows
    that may be of no row are the last ones again."""
    lines, absent_lines = list[bytes](), list[bytes]()
    for piece in pieces:
        if isinstance(piece.content, bytes):
            own = split_lines(piece.content)
            lines += own[: len(own) - piece.absent]
            absent_lines += own[len(own) - piece.absent :]
    lines += absent_lines
    if labelled:
        fields = [split_fields(line) for line in lines]
        lines = [join_fields([*row[:-2], b"%d" % n, row[-1]]) for n, row in enumerate(fields)]
    rows, absent = sum(piece.rows for piece in pieces), sum(piece.absent for piece in pieces)
    return replace(pieces[0], rows=rows, absent=absent, content=join_lines(lines))


def _key_texts(table: Table, columns: Sequence[Sequence[Value]], rows: int) -> list[bytes]:
    return split_lines(encode_columns([columns[i] for i in table.key] if table.key else columns, rows))


def _whole(part: TableChanges) -> Sequence[Sequence[Value]]:
    """Returns the new columns; in a table without a key, unsent values are the old ones."""
    if part.table.key or part.old is None:
        return part.new
    return [
        [before if after is UNCHANGED else after for after, before in zip(new, old, strict=True)]
        for new, old in zip(part.new, part.old, strict=True)
    ]


def _key_of(piece: Piece, line: bytes) -> bytes:
    """Returns the text of the key in a staged row, whose columns ``PieceKind`` lists."""
    if piece.kind is PieceKind.DELETE:
        return line
    fields = split_fields(line)
    if piece.kind is PieceKind.IN_ORDER:
        width = len(piece.table.columns)
        return join_fields(fields[2 + width :] if fields[1] == b"D" else fields[2 : 2 + width])
    if piece.kind in (PieceKind.MOVE, PieceKind.MOVE_IN_ORDER):
        fields = fields[1:]
    return join_fields(fields[i] for i in piece.table.key) if piece.table.key else line
