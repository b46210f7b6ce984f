"""A place in the write-ahead log.

PostgreSQL writes an LSN as two hexadecimal halves of an unsigned 64-bit number (``16/B374D848``, manual:
"pg_lsn Type"). Here it is an ``int``, so that it compares and subtracts as the server's own type does.
"""

from __future__ import annotations

import re
from typing import NewType

LSN = NewType("LSN", int)

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> LSN:
    """The LSN that ``text`` names; raises ValueError for anything but two hexadecimal halves."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r} (expected two hexadecimal numbers, like 16/B374D848)")
    high, low = match.groups()
    return LSN((int(high, 16) << 32) | int(low, 16))


def format_lsn(lsn: int) -> str:
    """The server's spelling: upper-case hexadecimal without leading zeros."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
