"""Memory that was freed and that the C library keeps, for it lies below what is in use."""

from __future__ import annotations

import os
from pathlib import Path

KEPT_BYTES = 40_000_000
_BLOCK_BYTES = 100_000


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def keep_freed_memory() -> list[bytes]:
    """Frees KEPT_BYTES. What is returned lies between and above them, and has to be held until they have been looked for."""
    blocks = [b"x" * _BLOCK_BYTES for _ in range(2 * KEPT_BYTES // _BLOCK_BYTES)]
    return blocks[1::2]
