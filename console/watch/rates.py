"""The speed of a group, from two statuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgsluice.console.watch.look import Look


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second; None if unknown, as when a process was started between two statuses. ``applied`` is by worker."""

    published_changes: float | None = None
    published_bytes: float | None = None
    applied: Mapping[str, float] = field(default_factory=dict)


UNKNOWN_RATES = Rates()


def rates_between(earlier: Look | None, newest: Look) -> Rates:
    """``earlier`` is None at the first status."""
    if earlier is None or newest.at_s <= earlier.at_s:
        return UNKNOWN_RATES
    seconds = newest.at_s - earlier.at_s
    before = {worker.name: worker for worker in earlier.status.workers}
    applied = {
        worker.name: (worker.changes - before[worker.name].changes) / seconds
        for worker in newest.status.workers
        if worker.name in before and before[worker.name].started_at == worker.started_at
    }
    first, last = earlier.status.replicator, newest.status.replicator
    if first is None or last is None or first.started_at != last.started_at:
        return Rates(applied=applied)
    return Rates((last.changes - first.changes) / seconds, (last.body_bytes - first.body_bytes) / seconds, applied)
