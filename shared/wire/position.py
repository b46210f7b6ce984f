"""A place in the write-ahead log, and the place of one change in commit order.

PostgreSQL writes an LSN as two hexadecimal halves of an unsigned 64-bit number (``16/B374D848``, manual: "pg_lsn Type"). Here
it is an ``int``, so that it compares and subtracts as the server's own type does.

A position is the pair (commit LSN, ordinal): the commit LSN comes from the transaction's Begin message, the ordinal counts
the transaction's changes (insert, update, delete, truncate) from 1. Positions order everything; the LSN of a single record
is never compared with another's, because records of concurrent transactions interleave in the log.

A server that goes back in its history (a restored snapshot, a promoted standby) gives commit LSNs out again. An anchor is a
position that means one transaction for good: its transaction id and commit time are not given out again together with its LSN.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NewType

LSN = NewType("LSN", int)

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""PostgreSQL counts the microseconds of its timestamps from there; so do commit times."""


def parse_lsn(text: str) -> LSN:
    """Returns the LSN that ``text`` names; raises ValueError for anything but two hexadecimal halves."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r} (expected two hexadecimal numbers, like 16/B374D848)")
    high, low = match.groups()
    return LSN((int(high, 16) << 32) | int(low, 16))


def format_lsn(lsn: int) -> str:
    """Returns the server's spelling: upper-case hexadecimal without leading zeros."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def format_time(microseconds: int) -> str:
    """Returns RFC 3339 of a time in microseconds since 2000-01-01 UTC; "" for 0, where it is not known."""
    return (POSTGRES_EPOCH + timedelta(microseconds=microseconds)).isoformat() if microseconds else ""


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


class Anchor(NamedTuple):
    """``committed_at`` is in microseconds since 2000-01-01 UTC, as Begin has it. ``str()`` and ``parse`` are inverse:
    ``16/B374D848:3 745 823456789012345``."""

    position: Position
    xid: int
    committed_at: int

    def __str__(self) -> str:
        return f"{self.position} {self.xid} {self.committed_at}"

    @classmethod
    def parse(cls, text: str) -> Anchor:
        """Raises ValueError when ``text`` is not a position and two numbers."""
        position, xid, committed_at = text.split(" ")
        return cls(Position.parse(position), int(xid), int(committed_at))


NO_ANCHOR = Anchor(Position(LSN(0), 0), 0, 0)
"""The anchor before the first change of a stream."""
