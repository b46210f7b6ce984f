from __future__ import annotations

import pytest

from pgsluice.shared.errors import WireError
from pgsluice.testing.changes_builder import table
from pgsluice.worker.sinks.postgres.fold.piece import Clearing, FoldedPartition, Piece, PieceKind, StagedRows, inserts_together

ORDERS = table("public.orders", "id bigint", "note text")
OTHERS = table('public.odd "name"', "id bigint", "note text")
FOLDED = FoldedPartition(
    (Clearing(OTHERS, True),),
    (
        Piece(ORDERS, 0, PieceKind.UPSERT, 1, 0, b"1\ta\n"),
        Piece(OTHERS, 0, PieceKind.INSERT, 9, 0, StagedRows("stage_x_1")),
        Piece(ORDERS, 1, PieceKind.DELETE, 2, 1, b"1\n2\n"),
    ),
)


def test_a_share_is_decoded_as_it_was_encoded() -> None:
    assert FoldedPartition.decode(FOLDED.encode()) == FOLDED
    assert FoldedPartition.decode(FoldedPartition((), ()).encode()) == FoldedPartition((), ())


def test_a_table_that_every_share_brings_is_decoded_once() -> None:
    """Hundreds of tables are looked up by it, many times in each batch: equal ones are compared column by column."""
    one, other = (FoldedPartition.decode(FOLDED.encode()) for _ in range(2))
    assert [piece.table for piece in one.pieces]
    assert all(piece.table is again.table for piece, again in zip(one.pieces, other.pieces, strict=True))


def test_new_rows_of_all_partitions_go_into_their_tables_together() -> None:
    first = FoldedPartition(
        (), (Piece(ORDERS, 0, PieceKind.INSERT, 1, 0, b"1\ta\n"), Piece(OTHERS, 0, PieceKind.INSERT, 1, 0, b"7\tx\n"))
    )
    staged = Piece(ORDERS, 0, PieceKind.INSERT, 9, 0, StagedRows("stage_x_1"))
    second = FoldedPartition((), (staged, Piece(ORDERS, 0, PieceKind.INSERT, 2, 0, b"2\tb\n3\tc\n")))
    [folded] = inserts_together([first, second])
    assert folded.pieces == (
        staged,
        Piece(ORDERS, 0, PieceKind.INSERT, 3, 0, b"1\ta\n2\tb\n3\tc\n"),
        Piece(OTHERS, 0, PieceKind.INSERT, 1, 0, b"7\tx\n"),
    )


@pytest.mark.parametrize(
    "other",
    [
        FoldedPartition((Clearing(OTHERS, False),), ()),
        FoldedPartition((), (Piece(ORDERS, 0, PieceKind.DELETE, 1, 0, b"1\n"),)),
        FoldedPartition((), (Piece(ORDERS, 1, PieceKind.INSERT, 1, 0, b"1\ta\n"),)),
    ],
    ids=["truncation", "deletion", "second round"],
)
def test_partitions_with_anything_else_stay_apart(other: FoldedPartition) -> None:
    partitions = [FoldedPartition((), (Piece(ORDERS, 0, PieceKind.INSERT, 1, 0, b"1\ta\n"),)), other]
    assert inserts_together(partitions) is partitions


def test_every_truncated_prefix_is_refused() -> None:
    body = FOLDED.encode()
    for length in range(len(body)):
        with pytest.raises(WireError):
            FoldedPartition.decode(body[:length])


def test_what_follows_the_last_piece_is_refused() -> None:
    with pytest.raises(WireError, match="its header claims"):
        FoldedPartition.decode(FOLDED.encode() + b"3\tb\n")
