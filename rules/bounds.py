"""Limits for the rules of untrusted users: the size of their patterns, and a budget for a single message."""

from __future__ import annotations

import re
from collections.abc import Callable

_PIECE = re.compile(
    r"""
    \\[pP](?:\{[^}]*\}|.)
    | \\Q.*?(?:\\E|$)
    | \\.
    | \[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]
    | \{\d+(?:,\d*)?\}
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_UNICODE_CLASS = re.compile(r"\\[pP]")
_CLASS_SIZE = 100


def pattern_size(pattern: str) -> int:
    """Returns the approximate size of an RE2 pattern once its repetitions are written out, which determines the cost to
    compile and to apply it."""
    open_groups, last = [0], 0
    for match in _PIECE.finditer(pattern):
        piece = match[0]
        if piece == "(":
            open_groups.append(0)
            last = 0
        elif piece == ")" and len(open_groups) > 1:
            last = open_groups.pop()
            open_groups[-1] += last
        elif piece.startswith("{") and len(piece) > 1:
            times = max(1, *map(int, re.findall(r"\d+", piece)))
            open_groups[-1] += last * (times - 1)
            last *= times
        else:
            last = len(piece) if piece.startswith("\\Q") else 1 + _CLASS_SIZE * len(_UNICODE_CLASS.findall(piece))
            open_groups[-1] += last
    return sum(open_groups)


class BudgetSpentError(Exception):
    """``reason`` is a sentence without row values. ``is_time``: of time, not of bytes."""

    def __init__(self, reason: str, *, is_time: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_time = is_time


class RuleBudget:
    """A budget of seconds of ``clock``, and of bytes by which rules make a message larger. Rules ask it while they run."""

    def __init__(self, clock: Callable[[], float], seconds: float, growth_bytes: int) -> None:
        self._clock = clock
        self._seconds = seconds
        self._growth_bytes = growth_bytes
        self._ends_at = clock() + seconds
        self._left_bytes = growth_bytes

    def check(self) -> None:
        """Raises BudgetSpentError when the time is over."""
        if self._clock() >= self._ends_at:
            reason = f"the rules needed more than {self._seconds:.1f} s for a message of the stream"
            raise BudgetSpentError(reason, is_time=True)

    def grow(self, size: int) -> None:
        """Takes so many bytes. Raises BudgetSpentError when there are no more."""
        self._left_bytes -= max(0, size)
        if self._left_bytes < 0:
            reason = f"the rules make one message of the stream more than {self._growth_bytes >> 20} MiB larger"
            raise BudgetSpentError(reason, is_time=False)
