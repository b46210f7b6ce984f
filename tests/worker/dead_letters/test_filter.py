"""Taking rejected changes out of messages, and with them the later changes of the same rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import MessageChanges, TableChanges
from pgsluice.shared.wire.dead_letter import DeadLetter, copied_position
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.changes_builder import TransactionPart, copied, delete, insert, table, transaction, truncate, update
from pgsluice.worker.dead_letters.exclusions import Exclusions, table_key
from pgsluice.worker.dead_letters.filter import DeadLetterFilter
from pgsluice.worker.dead_letters.rejection import Rejection
from tests.worker.encoded_changes import body_of, decoded

ORDERS = table("public.orders", "id bigint", "note text")
ITEMS = replace(table("public.items", "id bigint", "note text"), oid=17)
EVENTS = replace(table("public.events", "id bigint", "note text", key=(), identity=ReplicaIdentity.FULL), oid=18)
KEY = table_key(ORDERS)


def position(commit_lsn: int, ordinal: int = 1) -> Position:
    return Position(LSN(commit_lsn), ordinal)


def letter_filter(
    rejected: dict[Position, str] | None = None, blocked: dict[tuple[bytes], Position] | None = None
) -> DeadLetterFilter:
    return DeadLetterFilter(Exclusions(rejected or {}, {KEY: blocked} if blocked else {}, room=100), "w")  # type: ignore[dict-item]


def remainder(letters: DeadLetterFilter, sequence: int, *transactions: TransactionPart) -> MessageChanges:
    body = body_of(*transactions)
    return letters.remainder(decoded(sequence, body, transactions[0].first_ordinal), body)


def left(message: MessageChanges) -> list[tuple[str, list[int]]]:
    """Tables and change indexes of what is left."""
    return [(part.table.name, part.change_indexes) for part in message.parts if isinstance(part, TableChanges)]


def positions(letters: list[DeadLetter]) -> list[str]:
    return [str(letter.position) for letter in letters]


def test_a_message_passes_as_it_is_while_nothing_is_excluded() -> None:
    body = body_of(transaction(1000, insert(ORDERS, b"1", b"a")))
    message = decoded(1, body)
    assert DeadLetterFilter(Exclusions({}, {}, 0), "w").remainder(message, body) is message


def test_a_rejected_change_is_taken_out_and_its_letter_decodes_alone() -> None:
    letters = letter_filter({position(1000, 2): "too long"})
    message = remainder(letters, 5, transaction(1000, insert(ITEMS, b"1", b"x"), insert(ORDERS, b"7", b"y"), committed_at=9))
    assert left(message) == [("items", [0])]
    (letter,) = letters.take_letters()
    assert (letter.worker, letter.table, letter.reason, letter.sequence) == ("w", "public.orders", "too long", 5)
    alone = decoded(5, letter.body, letter.position.ordinal)
    (part,) = alone.parts
    assert isinstance(part, TableChanges)
    assert (part.table, part.new) == (ORDERS, [[b"7"], [b"y"]])
    assert alone.transactions[0].position(0) == position(1000, 2)
    assert (alone.transactions[0].commits, alone.transactions[0].committed_at) == (True, 9)
    assert letters.take_letters() == []


def test_later_changes_of_the_row_go_behind_it_in_this_message_and_the_next() -> None:
    letters = letter_filter({position(1000): "too long"})
    first = remainder(letters, 1, transaction(1000, insert(ORDERS, b"1", b"x")), transaction(2000, update(ORDERS, b"1", b"y")))
    second = remainder(letters, 2, transaction(3000, delete(ORDERS, b"1", None), insert(ORDERS, b"2", b"a")))
    assert (left(first), left(second)) == ([], [("orders", [1])])
    taken = letters.take_letters()
    assert positions(taken) == ["0/3E8:1", "0/7D0:1", "0/BB8:1"]
    assert [letter.reason for letter in taken[1:]] == ["behind the dead letter 0/3E8:1 of the same row"] * 2


def test_earlier_changes_of_a_blocked_row_pass() -> None:
    letters = letter_filter(blocked={(b"1",): position(2000)})
    message = remainder(letters, 1, transaction(1000, insert(ORDERS, b"1", b"x")), transaction(2000, update(ORDERS, b"1", b"y")))
    assert left(message) == [("orders", [0])]


def test_a_key_that_a_blocked_row_takes_is_blocked_too() -> None:
    letters = letter_filter(blocked={(b"1",): position(500)})
    moved = update(ORDERS, b"2", UNCHANGED, old=(b"1", None))
    message = remainder(letters, 1, transaction(1000, moved, update(ORDERS, b"2", b"y"), update(ORDERS, b"3", b"z")))
    assert left(message) == [("orders", [2])]
    assert positions(letters.take_letters()) == ["0/3E8:1", "0/3E8:2"]


def test_a_row_without_a_key_is_known_by_all_its_values() -> None:
    letters = letter_filter({position(1000): "no"})
    changes = (
        insert(EVENTS, b"1", b"a"),
        insert(EVENTS, b"1", b"b"),
        update(EVENTS, b"2", UNCHANGED, old=(b"1", b"a")),
        delete(EVENTS, b"2", b"a"),
        delete(EVENTS, b"1", b"b"),
    )
    assert left(remainder(letters, 1, transaction(1000, *changes))) == [("events", [1, 4])]


def test_a_change_that_is_rejected_meanwhile_is_taken_out_of_what_is_left() -> None:
    letters = letter_filter({position(1000, 1): "first"})
    body = body_of(transaction(1000, insert(ORDERS, b"1", b"x"), insert(ORDERS, b"2", b"y"), insert(ORDERS, b"3", b"z")))
    message = letters.remainder(decoded(1, body), body)
    letters.reject([Rejection(position(1000, 3), "third")])
    assert left(letters.remainder(message, body)) == [("orders", [1])]
    assert [letter.reason for letter in letters.take_letters()] == ["first", "third"]


def test_a_row_stays_blocked_when_its_table_is_renamed() -> None:
    renamed = replace(ORDERS, name="orders_2025")
    letters = letter_filter(blocked={(b"1",): position(500)})
    message = remainder(letters, 1, transaction(1000, update(renamed, b"1", b"x"), update(renamed, b"2", b"y")))
    assert left(message) == [("orders_2025", [1])]
    successor = replace(ORDERS, oid=4711)
    message = remainder(letters, 2, transaction(2000, update(successor, b"1", b"x")))
    assert left(message) == [("orders", [0])]


def test_all_rows_of_a_table_are_blocked_when_its_key_is_another_than_that_of_its_letters() -> None:
    other = table("public.orders", "id bigint", "note text", key=("note",))
    letters = letter_filter(blocked={(b"1",): position(1000, 2)})
    message = remainder(letters, 1, transaction(1000, *[update(other, b"%d" % n, b"n") for n in range(3)]))
    assert left(message) == [("orders", [0])]
    assert {letter.reason for letter in letters.take_letters()} <= {
        "behind the dead letter 0/3E8:2, of when the table had another key",
        "behind the dead letter 0/3E8:2 of the same row",
    }
    message = remainder(letters, 2, transaction(2000, truncate(other), insert(other, b"7", b"n")))
    assert left(message) == [("orders", [1])]


@pytest.mark.parametrize(
    ("was", "now", "value", "is_left"),
    [
        ("bigint", "integer", b"2", True),
        ("bigint", "integer", b"1", False),
        ("smallint", "bigint", b"2", True),
        ("varchar", "text", b"2", True),
        ("bigint", "numeric", b"2", False),
    ],
)
def test_rows_are_known_by_a_key_of_another_type_only_where_its_values_are_written_alike(
    was: str, now: str, value: bytes, is_left: bool
) -> None:
    before, after = (table("public.orders", ("id", kind), "note text") for kind in (was, now))
    letters = DeadLetterFilter(Exclusions({}, {table_key(before): {(b"1",): position(1000)}}, room=100), "w")
    assert bool(left(remainder(letters, 2, transaction(2000, insert(after, value, b"x"))))) is is_left


def test_a_truncated_table_has_no_blocked_rows_any_more() -> None:
    letters = letter_filter(blocked={(b"1",): position(500)})
    message = remainder(letters, 1, transaction(1000, update(ORDERS, b"1", b"x"), truncate(ORDERS), insert(ORDERS, b"1", b"y")))
    assert left(message) == [("orders", [2])]
    assert letters.take_truncated() == [(ORDERS.oid, position(1000, 2))]


def test_a_transaction_that_began_before_the_message_keeps_its_ordinals() -> None:
    letters = letter_filter({position(1000, 12): "no"})
    changes = (insert(ORDERS, b"1", b"x"), insert(ORDERS, b"2", b"y"))
    message = remainder(letters, 1, transaction(1000, *changes, first_ordinal=11, commits=False))
    assert left(message) == [("orders", [0])]
    assert positions(letters.take_letters()) == ["0/3E8:12"]


def test_a_rejected_truncation_is_a_letter_of_its_own() -> None:
    letters = letter_filter({position(1000): "410 Gone"})
    message = remainder(letters, 1, transaction(1000, truncate(ORDERS, ITEMS)))
    assert message.parts == []
    (letter,) = letters.take_letters()
    assert letter.table == "public.orders, public.items"


def test_all_later_changes_of_a_table_wait_for_its_rejected_truncation() -> None:
    letters = letter_filter({position(1000, 2): "410 Gone"})
    changes = insert(ORDERS, b"1", b"x"), truncate(ORDERS), insert(ORDERS, b"2", b"y"), insert(ITEMS, b"2", b"y")
    assert left(remainder(letters, 1, transaction(1000, *changes))) == [("orders", [0]), ("items", [3])]
    truncation, behind = letters.take_letters()
    assert (truncation.reason, behind.reason) == ("410 Gone", "behind the dead letter 0/3E8:2, a truncation of the table")


def test_rows_of_a_table_without_a_key_are_blocked_when_it_has_another_column_than_they_had() -> None:
    wider = replace(table("public.events", "id bigint", "note text", "more text", key=(), identity=ReplicaIdentity.FULL), oid=18)
    letters = letter_filter({position(1000): "too long"})
    remainder(letters, 1, transaction(1000, insert(EVENTS, b"1", b"x")))
    changed = update(wider, b"1", b"y", None, old=(b"1", b"x", None))
    assert left(remainder(letters, 2, transaction(2000, changed))) == []


def test_a_truncation_that_does_not_reach_the_destination_leaves_rows_blocked_and_their_letters() -> None:
    exclusions = Exclusions({}, {KEY: {(b"1",): position(500)}}, room=100)
    letters = DeadLetterFilter(exclusions, "w", truncates=lambda table: table == ITEMS)
    message = remainder(letters, 1, transaction(1000, truncate(ORDERS, ITEMS), insert(ORDERS, b"1", b"y")))
    assert left(message) == []
    assert (letters.take_truncated(), positions(letters.take_letters())) == ([], ["0/3E8:2"])


@pytest.mark.parametrize(
    ("key", "same"),
    [
        ("numeric", (b"1.0", b"1.00")),
        ("float8", (b"0", b"-0")),
        ("real", (b"0", b"-0")),
        ("character", (b"a", b"a  ")),
        ("interval", (b"1 day", b"24:00:00")),
        ("citext", (b"Key", b"kEY")),
    ],
)
def test_a_row_that_comes_back_with_the_same_key_written_otherwise_waits_for_its_letters(
    key: str, same: tuple[bytes, bytes]
) -> None:
    prices = table("public.prices", f"id {key}", "note text")
    letters = letter_filter({position(1000): "too long"})
    changes = insert(prices, same[0], b"x"), delete(prices, same[0], None), insert(prices, same[1], b"y")
    assert left(remainder(letters, 1, transaction(1000, *changes))) == []


def test_a_rejected_copied_row_becomes_the_insert_that_it_would_be() -> None:
    rows = copied(7, ORDERS, (b"1", b"a"), (b"2", b"tab\t"), (b"3", None))
    letters = letter_filter({copied_position(7, 1): "too long", copied_position(8, 0): "another message"})
    rest = letters.copied_remainder(rows)
    assert (bytes(rest.data), rest.rows, rest.numbers) == (b"1\ta\n3\t\\N\n", 2, (0, 2))
    (letter,) = letters.take_letters()
    assert letter.is_copied
    (part,) = decoded(7, letter.body, letter.position.ordinal).parts
    assert isinstance(part, TableChanges)
    assert part.new == [[b"2"], [b"tab\t"]]
    assert copied_position(7, 1) == letter.position < position(1)


def test_more_letters_than_there_is_room_for_stop_the_worker() -> None:
    letters = DeadLetterFilter(Exclusions({}, {KEY: {(b"1",): position(1)}}, room=2), "w")
    updates = [update(ORDERS, b"1", b"%d" % n) for n in range(5)]
    with pytest.raises(TerminalError, match="--max-dead-letters"):
        remainder(letters, 1, transaction(1000, *updates))
