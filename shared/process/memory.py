"""How the C library deals with memory that is freed."""

from __future__ import annotations

import ctypes

LARGE_BYTES = 256 * 1024

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h of the GNU C library


def give_back_freed_memory() -> None:
    """What is LARGE_BYTES or more goes back to the system when it is freed, in this process and in those that it forks.

    By itself the GNU C library raises that border to the size of what was freed, up to 32 MiB: then a process that once had a
    large batch keeps its memory, in up to eight arenas for each processor. Does nothing with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((_MMAP_THRESHOLD, LARGE_BYTES), (_TRIM_THRESHOLD, LARGE_BYTES), (_ARENA_MAX, 2)):
            mallopt(parameter, value)
