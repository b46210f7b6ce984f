"""How large a value may become on its way, by whatever somebody wrote: a transform of a rule, a statement of a step.

A few of these in a row would make gigabytes of some bytes, and the allocation that fails ends the process.
"""

from __future__ import annotations

MOST_GROWTH = 16
ALLOWANCE_BYTES = 64 * 1024


def most_bytes(size: int) -> int:
    """What ``size`` bytes may become."""
    return MOST_GROWTH * size + ALLOWANCE_BYTES
