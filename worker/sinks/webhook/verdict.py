"""What a receiver's answer means.

| answer | verdict |
|---|---|
| 2xx | accepted |
| 408, 425, 429, 5xx | try again later; not before ``Retry-After``, where given |
| other 4xx | refused: the same request would be refused again |
| anything else, redirects among them | misdirected: this is not the receiver; a person is needed |
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_RETRY_AFTER_S = 3600.0  # a receiver's mistake must not silence the worker for a year; it is asked again then

_TRY_AGAIN = frozenset({408, 425, 429})


class Verdict(enum.Enum):
    ACCEPTED = "accepted"
    TRY_AGAIN = "try again"
    REFUSED = "refused"
    MISDIRECTED = "misdirected"


def verdict(status: int) -> Verdict:
    if 200 <= status < 300:
        return Verdict.ACCEPTED
    if status in _TRY_AGAIN or status >= 500:
        return Verdict.TRY_AGAIN
    return Verdict.REFUSED if 400 <= status < 500 else Verdict.MISDIRECTED


def parse_retry_after(header: str, now: datetime) -> float:
    """Seconds to wait from ``now``: the header's number, or until its date (RFC 9110, 10.2.3). 0 when it says neither."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
    return min(max(seconds.total_seconds(), 0.0), LONGEST_RETRY_AFTER_S)
