"""What waits behind a dead letter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.broker.dead_letter_stream import StoredLetter
from pgsluice.testing.changes_builder import insert, table, truncate, update
from pgsluice.worker.dead_letters.blocked_letters import BlockedLetters
from tests.console.test_dead import LETTERS, ORDERS, stored


def positions(letters: list[StoredLetter]) -> list[str]:
    return [str(each.letter.position) for each in letters]


def test_later_letters_of_the_row_are_behind_through_changes_of_its_key() -> None:
    blocked = BlockedLetters(LETTERS)
    assert [blocked.count_behind(each) for each in LETTERS] == [2, 0, 1, 0, 0]
    assert positions(blocked.behind(LETTERS[0])) == ["0/3:1", "0/4:1"]
    assert blocked.behind(LETTERS[1]) == []


def test_a_letter_takes_the_earlier_ones_of_its_row_along_through_changes_of_the_key() -> None:
    blocked = BlockedLetters(LETTERS)
    assert blocked.with_earlier([LETTERS[3]]) == [LETTERS[0], LETTERS[2], LETTERS[3]]
    assert blocked.with_earlier([LETTERS[1]]) == [LETTERS[1]]


def test_while_a_letter_is_held_the_later_ones_of_its_row_are_and_no_others() -> None:
    blocked = BlockedLetters(LETTERS)
    assert blocked.split(LETTERS, [LETTERS[2]]) == ([LETTERS[0], LETTERS[1], LETTERS[4]], [LETTERS[2], LETTERS[3]])


def test_letters_of_when_the_table_had_another_key_and_truncations_are_in_one_queue_with_all_others_of_the_table() -> None:
    other_key = table("public.orders", "id bigint", "note text", key=("note",))
    for between in (insert(other_key, b"9", b"z"), truncate(ORDERS)):
        letters = [stored(1, insert(ORDERS, b"1", b"a")), stored(2, between), stored(3, insert(ORDERS, b"2", b"b"))]
        assert BlockedLetters(letters).with_earlier([letters[2]]) == letters


def test_what_two_ways_lead_to_is_counted_once() -> None:
    letters = [
        stored(1, update(ORDERS, b"2", b"a", old=(b"1", None))),
        stored(2, insert(ORDERS, b"1", b"b")),
        stored(3, update(ORDERS, b"1", b"c", old=(b"2", None))),
        stored(4, update(ORDERS, b"1", b"d")),
    ]
    assert [BlockedLetters(letters).count_behind(each) for each in letters] == [3, 2, 1, 0]


moves = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from("wx")), max_size=12)


@given(moves)
def test_counts_are_those_of_a_plain_search(made: list[tuple[int, int, str]]) -> None:
    letters = [
        stored(number, update(ORDERS, b"%d" % new, b"v", old=(b"%d" % old, None)), worker=worker)
        for number, (old, new, worker) in enumerate(made, start=1)
    ]
    letters.sort(key=lambda each: (each.letter.worker, each.letter.position))
    keys = {each.letter.position: {made[at - 1][0], made[at - 1][1]} for each in letters for at in [each.letter.position[0]]}
    blocked = BlockedLetters(letters)
    for at, first in enumerate(letters):
        rows, found = set(keys[first.letter.position]), []
        for later in letters[at + 1 :]:
            if later.letter.worker == first.letter.worker and rows & keys[later.letter.position]:
                found.append(later)
                rows |= keys[later.letter.position]
        assert blocked.behind(first) == found
        assert blocked.count_behind(first) == len(found)
