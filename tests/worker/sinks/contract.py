"""The contract of sinks (``pgsluice.testing``) as ours keep it."""

from __future__ import annotations

from typing import ClassVar

from pgsluice.testing import Promise
from pgsluice.testing import SinkContract as AnyonesContract

AT_LEAST_ONCE = frozenset({Promise.COPIED_ROWS, Promise.TABLES_WITHOUT_KEYS, Promise.RENUMBER})
"""What all of ours promise that take copied rows."""

EXACTLY_ONCE = AT_LEAST_ONCE | {Promise.EXACTLY_ONCE}


class SinkContract(AnyonesContract):
    """``kind`` is what the command line calls the sink."""

    kind: ClassVar[str]
    taken_over = "position of worker"
