"""How large a stream is made whose size nobody chose.

JetStream reserves a stream's ``max_bytes`` when it is made. It tells an account what it has reserved, but not what its servers
have left; only that a stream is too large. So a new stream is tried in falling sizes. What is accepted was free, and the stream
keeps a share of it: streams that are made later find room too, however small the broker is.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST = 10 * 1024**3
LEAST = 256 * 1024**2
SHARE = 8


def trial_sizes() -> Iterator[int]:
    """The sizes to try, the largest first."""
    size = SHARE * MOST
    while size > LEAST:
        yield size
        size //= 2
    yield LEAST


def share_of(accepted: int) -> int:
    """What a stream keeps that JetStream took with ``accepted`` bytes."""
    return max(LEAST, min(MOST, accepted // SHARE))
