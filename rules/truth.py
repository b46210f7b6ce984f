"""Truth values of many rows at once: one byte for each row, the set of truth values that it may have.

SQL's logic has three values, and a value that was not sent (UNCHANGED, or a column that an old row's key does not hold)
may have any of them. So TRUE, FALSE and NULL are one bit each, and a byte with several bits means that the row may be
any of these. Logic on whole columns is then arithmetic on one long integer, which costs next to nothing a row.
"""

from __future__ import annotations

TRUE = 1
FALSE = 2
NULL = 4
UNKNOWN = TRUE | FALSE | NULL

OF_BOOLEANS = bytes([FALSE, TRUE]).ljust(256, b"\0")
"""A table for ``bytes.translate``: from 0 and 1 to FALSE and TRUE."""

_NEGATED = bytes(
    (value & NULL) | (TRUE if value & FALSE else 0) | (FALSE if value & TRUE else 0) for value in range(UNKNOWN + 1)
).ljust(256, b"\0")


def negation(truths: bytes) -> bytes:
    """Returns SQL's NOT."""
    return truths.translate(_NEGATED)


def conjunction(left: bytes, right: bytes) -> bytes:
    """Returns SQL's AND, row by row: TRUE when both are, FALSE when one is, NULL otherwise."""
    a, b = int.from_bytes(left, "little"), int.from_bytes(right, "little")
    ones = int.from_bytes(b"\1" * len(left), "little")
    may_be_true = a & b & ones
    may_be_false = (a | b) & (ones << 1)
    null_if_other_is = (a | (a << 2)) & (b | (b << 2)) & (ones << 2)  # neither is surely FALSE
    may_be_null = null_if_other_is & (a | b)
    return (may_be_true | may_be_false | may_be_null).to_bytes(len(left), "little")


def disjunction(left: bytes, right: bytes) -> bytes:
    """Returns SQL's OR, row by row."""
    return negation(conjunction(negation(left), negation(right)))


def where(selected: bytes, then: bytes, otherwise: bytes) -> bytes:
    """Returns ``then`` in the rows where ``selected`` is 255, ``otherwise`` where it is 0."""
    mask, a, b = (int.from_bytes(column, "little") for column in (selected, then, otherwise))
    return (b ^ ((a ^ b) & mask)).to_bytes(len(selected), "little")
