"""Limit on the growth of a value by a transform of a rule or a statement of a step.

A few of them in a row would turn some bytes into gigabytes, and the failed allocation ends the process.
"""

from __future__ import annotations

MOST_GROWTH = 16
ALLOWANCE_BYTES = 64 * 1024


def most_bytes(size: int) -> int:
    """Returns the most bytes that ``size`` bytes may become."""
    return MOST_GROWTH * size + ALLOWANCE_BYTES
