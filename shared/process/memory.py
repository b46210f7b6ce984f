"""Reuse and return of freed memory, if the C library is GNU's; nothing happens with another one."""

from __future__ import annotations

import ctypes
from typing import Any

KEPT_BYTES = 32 * 1024 * 1024

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h


def reuse_freed_memory() -> None:
    """Keeps blocks of up to KEPT_BYTES, and as much at the end of the heap, in this process and its forks, to be used
    again.

    By default the library returns large blocks at once, and requests them again for the next: then each page is mapped
    and cleared again, which takes ten to twenty times as long as to copy it. Each message is copied several times.
    """
    for parameter, value in ((_MMAP_THRESHOLD, KEPT_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES), (_ARENA_MAX, 1)):
        _library("mallopt", parameter, value)


def give_back_freed_memory() -> None:
    """Returns freed memory to the operating system before an idle period."""
    _library("malloc_trim", 0)


def _library(name: str, *arguments: int) -> None:
    function: Any = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
