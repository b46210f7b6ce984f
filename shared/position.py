"""The place of one change in commit order.

A position is the pair (commit LSN, ordinal): the commit LSN comes from the transaction's Begin message, the ordinal counts
the transaction's changes (insert, update, delete, truncate) from 1. Positions order everything; the LSN of a single record
is never compared with another's, because records of concurrent transactions interleave in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.lsn import LSN, format_lsn, parse_lsn


class Position(NamedTuple):
    """Compares by commit LSN, then by ordinal. ``str()`` and ``parse`` are each other's inverse: ``16/B374D848:3``."""

    commit_lsn: LSN
    ordinal: int

    def __str__(self) -> str:
        return f"{format_lsn(self.commit_lsn)}:{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ValueError when ``text`` is not ``<LSN>:<ordinal>``."""
        lsn, colon, ordinal = text.rpartition(":")
        if not colon or not ordinal.isascii() or not ordinal.isdigit():
            raise ValueError(f"not a position: {text!r} (expected <LSN>:<ordinal>, like 16/B374D848:3)")
        return cls(parse_lsn(lsn), int(ordinal))
