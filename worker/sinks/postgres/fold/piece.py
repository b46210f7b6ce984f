"""The content of a partition's receipt: its changes folded to pieces, or the loaded copied rows.

A piece is a set of rows of one table to which one kind of statement applies. A partition is cut into rounds, in commit
order. Within a round no two pieces touch the same row, so the pieces of a round may be merged in any sequence that the
target's foreign keys need; the rounds, and the partitions, must be merged one after the other.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, assert_never

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table

TableName = tuple[str, str]
"""Schema and name."""

_U32 = struct.Struct(">I")


class PieceKind(enum.StrEnum):
    """The effect of the rows, and their columns when staged.

    ``c1 … cn`` are the table's columns, ``k1 … km`` its key columns as they were before, ``o1 … on`` all columns as
    they were before, ``unchanged`` one bit per column: 1 for a column whose value was not sent, which keeps what the
    target has.
    """

    INSERT = "insert"
    """c: rows that are new at the source."""
    UPSERT = "upsert"
    """c: whole rows, new or not."""
    PATCH = "patch"
    """c, unchanged: rows known in part; the key did not change."""
    MOVE = "move"
    """ord, c, unchanged, k: rows whose key changed; none comes to a key that another one of the piece leaves or comes to."""
    MOVE_IN_ORDER = "move_in_order"
    """MOVE, sorted by ``ord``: a row can come to a key that an earlier one left, and leave it again."""
    DELETE = "delete"
    """k: keys of rows that are gone."""
    IN_ORDER = "in_order"
    """ord, op, c, o: changes of a table without a key, each to one row, sorted by ``ord``."""


MOVES = (PieceKind.MOVE, PieceKind.MOVE_IN_ORDER)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that wait in the table ``name`` of the target's schema ``pgsluice``."""

    name: str


@dataclass(frozen=True, slots=True)
class ParkedText:
    """COPY text of ``size`` bytes that waits under ``name`` in the table ``table`` of the target's schema ``pgsluice``."""

    table: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class HandedText:
    """COPY text of ``size`` bytes in a file of this machine, from the byte ``start`` on."""

    path: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Piece:
    """``rows`` counts rows, of which ``absent`` may be missing at the target already (DELETE: they came and went within the
    round). ``content`` is COPY text, or where the rows were staged or the text is."""

    table: Table
    round: int
    kind: PieceKind
    rows: int
    absent: int
    content: bytes | StagedRows | ParkedText | HandedText

    @property
    def text_bytes(self) -> int:
        """The size of its COPY text; 0 when its rows are staged."""
        match self.content:
            case StagedRows():
                return 0
            case ParkedText(size=size) | HandedText(size=size):
                return size
            case bytes() as text:
                return len(text)
            case unreachable:
                assert_never(unreachable)


@dataclass(frozen=True, slots=True)
class Clearing:
    """A table to truncate before the partition's first round."""

    table: Table
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class FoldedPartition:
    """The content of one receipt: tables to truncate, then pieces in the order of their rounds; or definitions, and
    nothing else. ``is_refused``: the target refused rows, so there is nothing; they have to be tried one by one."""

    clearings: tuple[Clearing, ...]
    pieces: tuple[Piece, ...]
    is_refused: bool = False
    definitions: tuple[PublishedDefinition, ...] = ()

    def stages(self) -> list[str]:
        """Returns names of the tables that rows were staged in."""
        # a single kind: lists the pieces of one kind
        return [piece.content.name for piece in self.pieces if isinstance(piece.content, StagedRows)]

    def parked_tables(self) -> list[str]:
        """Returns names of the tables that text was parked in, each once."""
        return list(dict.fromkeys(piece.content.table for piece in self.pieces if isinstance(piece.content, ParkedText)))

    def encode(self) -> bytes:
        """Encodes: u32 length + JSON, then the COPY text of all pieces that carry it."""
        tables: dict[Table, int] = {}

        def number(table: Table) -> int:
            return tables.setdefault(table, len(tables))

        clearings = [[number(clearing.table), clearing.restart_identity] for clearing in self.clearings]
        pieces: list[list[Any]] = []
        texts: list[bytes] = []
        for piece in self.pieces:
            content: int | str | list[Any] | dict[str, Any]
            match piece.content:
                case StagedRows(name=name):
                    content = name
                case ParkedText(table=table, name=name, size=size):
                    content = [table, name, size]
                case HandedText():
                    content = {"path": piece.content.path, "start": piece.content.start, "size": piece.content.size}
                case bytes() as text:
                    content = len(text)
                    texts.append(text)
                case unreachable:
                    assert_never(unreachable)
            pieces.append([number(piece.table), piece.round, piece.kind.value, piece.rows, piece.absent, content])
        header = orjson.dumps(
            {
                "tables": list(map(_encode_table, tables)),
                "clearings": clearings,
                "pieces": pieces,
                "refused": self.is_refused,
                "definitions": [definition.encode().decode() for definition in self.definitions],
            }
        )
        return b"".join([_U32.pack(len(header)), header, *texts])

    @classmethod
    def decode(cls, body: bytes) -> FoldedPartition:
        """Raises WireError for bytes that ``encode`` does not make."""
        try:
            (length,) = _U32.unpack_from(body)
            start = _U32.size + length
            header: Any = orjson.loads(body[_U32.size : start])
            tables = list(map(_decode_table, header["tables"]))
            clearings = tuple(Clearing(tables[table], bool(restart)) for table, restart in header["clearings"])
            pieces, end = _decode_pieces(tables, header["pieces"], body, start)
            is_refused = bool(header["refused"])
            definitions = tuple(map(_decode_definition, header["definitions"]))
        except (struct.error, orjson.JSONDecodeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise WireError(f"a receipt of the Postgres sink is malformed ({type(error).__name__})") from None
        if end != len(body):
            raise WireError(f"a receipt of the Postgres sink has {len(body)} bytes, its header claims {end}")
        return cls(clearings, pieces, is_refused, definitions)


@dataclass(frozen=True, slots=True)
class LoadedPartition:
    """The content of the receipt of a partition of copied rows: the rows themselves are in their tables by then.

    ``sequences`` are the messages that were loaded, by this attempt or another. ``restarted`` tables are copied again:
    they must be emptied, and then nothing was loaded with them. ``filled`` are the tables that the messages went into;
    left out unless sequences are kept ahead of the rows. ``begun`` are tables of a pipeline's run that begins,
    ``replacing`` the ones among them whose rows must wait until they are whole, ``replaced`` the ones whose rows are
    whole. Then nothing was loaded, either. ``run`` is the run whose rows they are, 0 of none.
    """

    sequences: tuple[int, ...]
    restarted: tuple[Table, ...]
    filled: tuple[Table, ...] = ()
    begun: tuple[Table, ...] = ()
    replacing: tuple[Table, ...] = ()
    replaced: tuple[Table, ...] = ()
    run: int = 0

    def encode(self) -> bytes:
        tables = {name: getattr(self, name) for name in _LOADED_TABLES}
        encoded = {name: [table.encode() for table in of_kind] for name, of_kind in tables.items()}
        return orjson.dumps({"sequences": self.sequences, "run": self.run} | encoded)

    @classmethod
    def decode(cls, body: bytes) -> LoadedPartition:
        """Raises WireError for bytes that ``encode`` does not make."""
        try:
            found: Any = orjson.loads(body)
            tables = {name: tuple(map(Table.decode, found[name])) for name in _LOADED_TABLES}
            return cls(tuple(map(int, found["sequences"])), **tables, run=int(found["run"]))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise WireError(f"a receipt of the Postgres sink is malformed ({type(error).__name__})") from None


_LOADED_TABLES = ("restarted", "filled", "begun", "replacing", "replaced")


def inserts_together(partitions: Sequence[FoldedPartition]) -> Sequence[FoldedPartition]:
    """Returns one partition instead of all, when they contain only new rows: their sequence does not matter. A table's
    rows are loaded together, as far as receipts carry them."""
    pieces = [piece for folded in partitions for piece in folded.pieces]
    if any(folded.clearings for folded in partitions) or any(
        piece.kind is not PieceKind.INSERT or piece.round for piece in pieces
    ):
        return partitions
    joined = [piece for piece in pieces if not isinstance(piece.content, bytes)]
    carried: dict[Table, list[Piece]] = {}
    for piece in pieces:
        if isinstance(piece.content, bytes):
            carried.setdefault(piece.table, []).append(piece)
    for table, parts in carried.items():
        text = b"".join(piece.content for piece in parts if isinstance(piece.content, bytes))
        joined.append(Piece(table, 0, PieceKind.INSERT, sum(piece.rows for piece in parts), 0, text))
    return [FoldedPartition((), tuple(joined))]


@lru_cache(4096)
def _encode_table(table: Table) -> str:
    """Encodes as JSON in a string, so that a table that every batch has is decoded once."""
    return orjson.dumps(table.encode()).decode()


@lru_cache(4096)
def _decode_table(text: str) -> Table:
    """Raises KeyError, TypeError or ValueError."""
    return Table.decode(orjson.loads(text))


def _decode_definition(text: str) -> PublishedDefinition:
    definition = PublishedDefinition.decode(text.encode())
    if definition is None:
        raise ValueError("an empty definition")
    return definition


def _decode_pieces(tables: Sequence[Table], listed: list[Any], body: bytes, start: int) -> tuple[tuple[Piece, ...], int]:
    """Returns the pieces, and where the text of the last one ends."""
    pieces = []
    for table, round_number, kind, rows, absent, content in listed:
        source: bytes | StagedRows | ParkedText | HandedText
        if isinstance(content, str):
            source = StagedRows(content)
        elif isinstance(content, list):
            source = ParkedText(*content)
        elif isinstance(content, dict):
            source = HandedText(**content)
        else:
            source = body[start : start + content]
            start += content
        pieces.append(Piece(tables[table], round_number, PieceKind(kind), rows, absent, source))
    return tuple(pieces), start
