"""The fold against a model: what the pieces do to a target must be what the changes did to the source, one after the other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pgoutput.messages import OLD_KEY
from pgsluice.shared.rows.changes import DELETE
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Table, Value
from pgsluice.testing.changes_builder import Change, TruncateChange, delete, insert, message, table, truncate, update
from pgsluice.worker.sinks.postgres.fold.fold import PartitionFold
from pgsluice.worker.sinks.postgres.fold.piece import FoldedPartition, Piece, PieceKind
from tests.worker.sinks.postgres.copy_text_reader import read_rows

KEYED = table("public.keyed", "id bigint", "note text", "document text")
WIDE = table("public.wide", "id bigint", "number bigint", "document text", "picture text")
FULL = table("public.full", "id bigint", "note text", "document text", identity=ReplicaIdentity.FULL)
COMPOSITE = table("public.composite", "b text", "note text", "a bigint", "document text", key=("a", "b"))
KEYLESS = table("public.keyless", "note text", "document text", key=(), identity=ReplicaIdentity.FULL)
TABLES = (KEYED, WIDE, FULL, COMPOSITE, KEYLESS)

TOASTED = ("document", "picture")

Row = tuple[Value, ...]
KEYS = 4
"""So few keys that changes of one key meet each other all the time."""


@dataclass
class Source:
    """Makes random changes that a real table could have had, and keeps the tables they lead to."""

    random: random.Random
    rows: dict[Table, list[Row]] = field(default_factory=lambda: {each: [] for each in TABLES})
    values: int = 0

    def change(self) -> Change | TruncateChange:
        if self.random.random() < 0.03:
            chosen = self.random.sample(TABLES, self.random.randint(1, 2))
            for each in chosen:
                self.rows[each].clear()
            return truncate(*chosen)
        chosen_table = self.random.choice(TABLES)
        rows = self.rows[chosen_table]
        kind = self.random.choice(("insert", "update", "update", "move", "delete"))
        if kind == "insert" or not rows:
            return self._insert(chosen_table) or self._delete(chosen_table)
        return self._delete(chosen_table) if kind == "delete" else self._update(chosen_table, moves=kind == "move")

    def _value(self) -> bytes:
        self.values += 1
        return b"%d" % self.values

    def _free_key(self, of: Table) -> Row | None:
        used = {key_of(of, row) for row in self.rows[of]}
        free = [key for key in (tuple(b"%d" % i for _ in of.key) for i in range(KEYS)) if key not in used]
        return self.random.choice(free) if free else None

    def _insert(self, into: Table) -> Change | None:
        key = self._free_key(into)
        if into.key and key is None:
            return None
        row = self._with_key(into, tuple(self._value() for _ in into.columns), key or ())
        if not into.key and self.rows[into] and self.random.random() < 0.5:
            row = self.random.choice(self.rows[into])
        self.rows[into].append(row)
        return insert(into, *row)

    def _delete(self, from_table: Table) -> Change:
        rows = self.rows[from_table]
        row = rows.pop(self.random.randrange(len(rows)))
        return delete(from_table, *row)

    def _update(self, of: Table, *, moves: bool) -> Change:
        rows = self.rows[of]
        index = self.random.randrange(len(rows))
        old = rows[index]
        new = list(old)
        for column in range(len(of.columns)):
            if column not in of.key and self.random.random() < 0.5:
                new[column] = self._value()
        key = self._free_key(of) if moves and of.key else None
        row = self._with_key(of, tuple(new), key) if key is not None else tuple(new)
        rows[index] = row
        sent = tuple(
            UNCHANGED if value == before and column.name in TOASTED and self.random.random() < 0.8 else value
            for value, before, column in zip(row, old, of.columns, strict=True)
        )
        shows_old = of.replica_identity is ReplicaIdentity.FULL or key is not None
        return update(of, *sent, old=old if shows_old else None)

    @staticmethod
    def _with_key(of: Table, row: Row, key: Row) -> Row:
        values = dict(zip(of.key, key, strict=True))
        return tuple(values.get(i, value) for i, value in enumerate(row))


def key_of(of: Table, row: Row) -> Row:
    return tuple(row[i] for i in of.key)


MOVES = (PieceKind.MOVE, PieceKind.MOVE_IN_ORDER)


class Target:
    """Applies pieces as the merge does, to dictionaries; a row that a piece needs and does not find fails the test."""

    def __init__(self, rows: dict[Table, list[Row]], *, deletes_first: bool) -> None:
        self.keyed = {each: {key_of(each, row): row for row in rows[each]} for each in TABLES if each.key}
        self.keyless = {each: Counter(rows[each]) for each in TABLES if not each.key}
        self.deletes_first = deletes_first

    def apply(self, folded: FoldedPartition) -> None:
        for clearing in folded.clearings:
            (self.keyed if clearing.table.key else self.keyless)[clearing.table].clear()
        for round_number in sorted({piece.round for piece in folded.pieces}):
            pieces = [piece for piece in folded.pieces if piece.round == round_number]
            pieces.sort(key=lambda piece: ((piece.kind is PieceKind.DELETE) != self.deletes_first, piece.kind not in MOVES))
            for piece in pieces:
                self._apply(piece)

    def _apply(self, piece: Piece) -> None:
        assert isinstance(piece.content, bytes)
        staged: Sequence[Row] = read_rows(piece.content)
        assert len(staged) == piece.rows
        if not piece.table.key:
            self._apply_keyless(piece, staged)
            return
        if piece.kind is PieceKind.MOVE:  # in any order
            staged = sorted(staged, key=repr, reverse=True)
            assert len({key for row in staged for key in keys_of_move(piece.table, row)}) == 2 * len(staged)
        missing = sum(not self._apply_keyed(piece, row) for row in staged)
        assert missing <= piece.absent

    def _apply_keyed(self, piece: Piece, row: Row) -> bool:
        """Whether the change met the row it changes."""
        rows, width = self.keyed[piece.table], len(piece.table.columns)
        match piece.kind:
            case PieceKind.INSERT | PieceKind.UPSERT:
                rows[key_of(piece.table, row)] = row
            case PieceKind.DELETE:
                return rows.pop(row, None) is not None
            case PieceKind.PATCH:
                key = key_of(piece.table, row)
                rows[key] = patched(rows[key], row[:width], row[width])
            case PieceKind.MOVE | PieceKind.MOVE_IN_ORDER:
                _, *values, bits = row[: width + 2]
                before = rows.pop(row[width + 2 :], None)
                key = key_of(piece.table, tuple(values))
                assert key not in rows
                assert before is not None or bits == b"0" * width
                rows[key] = tuple(values) if before is None else patched(before, tuple(values), bits)
            case PieceKind.IN_ORDER:
                pytest.fail("a table with a key was not folded")
        return True

    def _apply_keyless(self, piece: Piece, staged: Sequence[Row]) -> None:
        rows, width = self.keyless[piece.table], len(piece.table.columns)
        if piece.kind is PieceKind.INSERT:
            rows.update(staged)
            return
        assert piece.kind is PieceKind.IN_ORDER
        for order, (ord_, operation, *images) in enumerate(staged):
            assert ord_ == b"%d" % order
            new, old = tuple(images[:width]), tuple(images[width:])
            if operation != b"I":
                assert rows[old] > 0
                rows[old] -= 1
            if operation != b"D":
                rows[new] += 1


def keys_of_move(of: Table, row: Row) -> tuple[Row, Row]:
    """The new and the old one of a staged row."""
    width = len(of.columns)
    return key_of(of, row[1 : width + 1]), row[width + 2 :]


def patched(row: Row, patch: Row, bits: Value) -> Row:
    assert isinstance(bits, bytes)
    return tuple(before if bit == ord("1") else after for before, after, bit in zip(row, patch, bits, strict=True))


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("deletes_first", [False, True])
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.lists(st.integers(1, 12), max_size=5), min_size=1, max_size=4))
def test_pieces_lead_where_the_changes_led(one_by_one: bool, deletes_first: bool, seed: int, sizes: list[list[int]]) -> None:
    """``sizes``: partitions of messages of changes."""
    source = Source(random.Random(seed))
    for _ in range(6):
        source.change()
    target = Target({each: list(rows) for each, rows in source.rows.items()}, deletes_first=deletes_first)
    sequence = 0
    for partition in sizes:
        fold = PartitionFold(one_by_one=one_by_one)
        for size in partition:
            sequence += 1
            fold.add(message(sequence, *(source.change() for _ in range(size))))
        target.apply(FoldedPartition.decode(fold.finish().encode()))
    assert {each: sorted(rows.values()) for each, rows in target.keyed.items()} == {
        each: sorted(rows) for each, rows in source.rows.items() if each.key
    }
    assert {each: +rows for each, rows in target.keyless.items()} == {
        each: Counter(rows) for each, rows in source.rows.items() if not each.key
    }


def fold_of(*changes: Change | TruncateChange) -> FoldedPartition:
    fold = PartitionFold()
    fold.add(message(1, *changes))
    return fold.finish()


def kinds(folded: FoldedPartition) -> list[tuple[int, PieceKind, int]]:
    return [(piece.round, piece.kind, piece.rows) for piece in folded.pieces]


def test_insert_update_and_delete_of_a_key_are_one_deletion() -> None:
    folded = fold_of(insert(KEYED, b"1", b"a", b"b"), update(KEYED, b"1", b"c", UNCHANGED), delete(KEYED, b"1", None, None))
    assert kinds(folded) == [(0, PieceKind.DELETE, 1)]
    assert folded.pieces[0].absent == 1


def test_unchanged_values_are_taken_from_an_earlier_image_of_the_row() -> None:
    folded = fold_of(update(KEYED, b"1", b"a", b"long"), update(KEYED, b"1", b"b", UNCHANGED))
    assert kinds(folded) == [(0, PieceKind.UPSERT, 1)]
    assert folded.pieces[0].content == b"1\tb\tlong\n"


def test_keys_that_rows_leave_to_each_other_are_changed_in_order_in_one_round() -> None:
    folded = fold_of(
        update(KEYED, b"9", b"one", b"x", old=(b"1", None, None)),
        update(KEYED, b"1", b"two", UNCHANGED, old=(b"2", None, None)),
        update(KEYED, b"2", b"one", UNCHANGED, old=(b"9", None, None)),
    )
    assert {(piece.round, piece.kind): piece.content for piece in folded.pieces} == {
        (0, PieceKind.MOVE_IN_ORDER): (b"0\t9\tone\tx\t000\t1\n1\t1\ttwo\t\\N\t001\t2\n2\t2\tone\tx\t000\t9\n"),
    }


def test_rows_that_go_to_keys_of_their_own_are_moved_in_any_order() -> None:
    folded = fold_of(
        update(KEYED, b"1", b"a", b"b"),
        update(KEYED, b"11", b"one", UNCHANGED, old=(b"1", None, None)),
        update(KEYED, b"12", b"two", UNCHANGED, old=(b"2", None, None)),
        update(KEYED, b"11", b"last", UNCHANGED),
    )
    assert {(piece.round, piece.kind): piece.content for piece in folded.pieces} == {
        (0, PieceKind.MOVE): b"0\t11\tlast\tb\t000\t1\n1\t12\ttwo\t\\N\t001\t2\n",
    }


def test_what_else_happens_to_a_key_that_changes_begins_a_round() -> None:
    folded = fold_of(
        delete(KEYED, b"2", None, None),
        update(KEYED, b"2", b"a", b"whole", old=(b"1", None, None)),
        insert(KEYED, b"1", b"b", b"c"),
    )
    assert kinds(folded) == [(0, PieceKind.DELETE, 1), (1, PieceKind.MOVE, 1), (2, PieceKind.UPSERT, 1)]
    folded = fold_of(update(KEYED, b"2", b"a", b"b", old=(b"1", None, None)), delete(KEYED, b"2", None, None))
    assert kinds(folded) == [(0, PieceKind.MOVE, 1), (1, PieceKind.DELETE, 1)]


def test_whole_rows_that_take_the_key_of_a_moved_one_begin_a_round() -> None:
    fold = PartitionFold()
    fold.add(message(1, update(KEYED, b"2", b"a", UNCHANGED, old=(b"1", None, None))))
    fold.add(message(2, insert(KEYED, b"1", b"b", b"c")))
    assert kinds(fold.finish()) == [(0, PieceKind.MOVE, 1), (1, PieceKind.UPSERT, 1)]


def test_inserts_alone_are_not_compared() -> None:
    assert kinds(fold_of(insert(KEYED, b"1", b"a", b"b"), insert(KEYED, b"2", b"a", b"b"))) == [(0, PieceKind.INSERT, 2)]


def test_a_truncation_drops_what_came_before_it_and_keeps_what_follows() -> None:
    folded = fold_of(
        insert(KEYED, b"1", b"a", b"b"), insert(FULL, b"7", b"", b""), truncate(KEYED), insert(KEYED, b"2", b"a", b"b")
    )
    assert [clearing.table for clearing in folded.clearings] == [KEYED]
    assert {piece.table: piece.content for piece in folded.pieces} == {KEYED: b"2\ta\tb\n", FULL: b"7\t\t\n"}


def test_a_table_that_was_renamed_is_the_same_one_as_before() -> None:
    """Which the target may have under one name: what came under the other must not be merged beside it, or after it."""
    renamed = replace(KEYED, name="renamed")
    rounds = {
        piece.table.name: piece.round
        for piece in fold_of(delete(KEYED, b"1", None, None), insert(renamed, b"1", b"a", b"b")).pieces
    }
    assert rounds["keyed"] < rounds["renamed"]
    folded = fold_of(insert(KEYED, b"1", b"a", b"b"), truncate(renamed), insert(renamed, b"2", b"a", b"b"))
    assert [piece.content for piece in folded.pieces] == [b"2\ta\tb\n"]


def test_a_new_version_of_a_table_begins_a_round() -> None:
    wider = table("public.keyed", "id bigint", "note text", "document text", "extra text")
    folded = fold_of(insert(KEYED, b"1", b"a", b"b"), insert(wider, b"2", b"a", b"b", b"c"))
    assert [(piece.round, piece.table) for piece in folded.pieces] == [(0, KEYED), (1, wider)]


def test_a_toasted_key_that_was_not_sent_is_taken_from_the_old_key() -> None:
    long_key = table("public.long_key", "id text", "note text", key=("id",))
    folded = fold_of(update(long_key, UNCHANGED, b"new", old=(b"long", None)))
    assert folded.pieces[0].content == b"long\tnew\n"


def test_a_delete_that_does_not_say_which_row_is_an_error() -> None:
    with pytest.raises(TerminalError, match=r"public\.keyless"):
        fold_of(Change(KEYLESS, ord("D"), None))
    with pytest.raises(TerminalError, match=r"public\.keyed"):
        fold_of(Change(KEYED, ord("D"), None))


def test_a_table_that_gets_its_first_name_back_is_still_the_same_one() -> None:
    renamed = replace(KEYED, name="renamed")
    fold = PartitionFold()
    fold.add(message(1, delete(KEYED, b"1", None, None), insert(renamed, b"1", b"a", b"b")))
    fold.add(message(2, delete(KEYED, b"1", None, None)))
    assert [(piece.round, piece.table.name) for piece in fold.finish().pieces] == [(0, "keyed"), (1, "renamed"), (2, "keyed")]


def test_a_table_whose_old_rows_begin_to_mean_something_else_begins_a_round() -> None:
    indexed = replace(KEYLESS, replica_identity=ReplicaIdentity.INDEX)  # the same columns, now a key
    folded = fold_of(delete(KEYLESS, b"a", b"b"), delete(indexed, b"a", b"b"))
    assert kinds(folded) == [(0, PieceKind.IN_ORDER, 1), (1, PieceKind.DELETE, 1)]


def test_a_truncation_that_restarts_sequences_is_not_forgotten_for_one_that_does_not() -> None:
    folded = fold_of(truncate(KEYED, restart_identity=True), truncate(KEYED))
    assert [clearing.restart_identity for clearing in folded.clearings] == [True]


def test_a_truncation_under_a_routed_name_leaves_rows_of_the_name_before_where_they_went() -> None:
    routed = replace(KEYED, name="elsewhere", origin=("public", "renamed"))
    folded = fold_of(insert(KEYED, b"1", b"a", b"b"), truncate(routed))
    assert [piece.content for piece in folded.pieces] == [b"1\ta\tb\n"]


def test_an_old_key_does_not_say_which_row_of_a_table_without_a_key() -> None:
    with pytest.raises(TerminalError, match=r"public\.keyless"):
        fold_of(Change(KEYLESS, DELETE, None, (b"a", None), OLD_KEY))
