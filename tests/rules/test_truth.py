"""Logic on columns of sets of truth values, against SQL's tables written out."""

from __future__ import annotations

from itertools import product

from pgsluice.rules.truth import FALSE, NULL, TRUE, conjunction, disjunction, negation, where

AND = {
    (TRUE, TRUE): TRUE,
    (TRUE, FALSE): FALSE,
    (TRUE, NULL): NULL,
    (FALSE, TRUE): FALSE,
    (FALSE, FALSE): FALSE,
    (FALSE, NULL): FALSE,
    (NULL, TRUE): NULL,
    (NULL, FALSE): FALSE,
    (NULL, NULL): NULL,
}
OR = {
    (TRUE, TRUE): TRUE,
    (TRUE, FALSE): TRUE,
    (TRUE, NULL): TRUE,
    (FALSE, TRUE): TRUE,
    (FALSE, FALSE): FALSE,
    (FALSE, NULL): NULL,
    (NULL, TRUE): TRUE,
    (NULL, FALSE): NULL,
    (NULL, NULL): NULL,
}
NOT = {TRUE: FALSE, FALSE: TRUE, NULL: NULL}

SETS = range(1, 8)
PAIRS = list(product(SETS, SETS))
LEFT, RIGHT = bytes(left for left, _ in PAIRS), bytes(right for _, right in PAIRS)


def members(truths: int) -> list[int]:
    return [truth for truth in (TRUE, FALSE, NULL) if truths & truth]


def expected(table: dict[tuple[int, int], int], left: int, right: int) -> int:
    """Every value that the pair may have."""
    union = 0
    for pair in product(members(left), members(right)):
        union |= table[pair]
    return union


def test_and_of_sets_is_what_each_pair_of_their_members_gives() -> None:
    assert list(conjunction(LEFT, RIGHT)) == [expected(AND, *pair) for pair in PAIRS]


def test_or_of_sets_is_what_each_pair_of_their_members_gives() -> None:
    assert list(disjunction(LEFT, RIGHT)) == [expected(OR, *pair) for pair in PAIRS]


def test_not_of_a_set_is_what_each_member_gives() -> None:
    assert list(negation(bytes(SETS))) == [sum(NOT[truth] for truth in members(truths)) for truths in SETS]


def test_where_chooses_row_by_row() -> None:
    assert where(b"\xff\x00\xff", b"\1\1\1", b"\7\7\7") == b"\1\7\1"


def test_no_rows_are_no_rows() -> None:
    assert conjunction(b"", b"") == disjunction(b"", b"") == negation(b"") == where(b"", b"", b"") == b""
