"""The last 24 hours in figures, one for every ten seconds, in memory: charts without a metrics system.

A figure that was not known then is NaN here and null in an answer. Memory: four bytes each, for as long as a group was seen.
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pgsluice.console.server.live.group_looks import GroupLooks, GroupView

STEP_S = 10
KEPT_STEPS = 24 * 3600 // STEP_S


class SeriesName(StrEnum):
    """The series of each group. Lag and latencies are the slowest worker's; a rate is the mean of its ten seconds."""

    PUBLISHED_PER_S = "published_per_s"
    APPLIED_PER_S = "applied_per_s"
    LAG_S = "lag_s"
    SLOT_RETAINED_BYTES = "slot_retained_bytes"
    STREAM_BYTES = "stream_bytes"
    STREAM_MAX_BYTES = "stream_max_bytes"
    DEAD_LETTERS = "dead_letters"
    LATENCY_P50_S = "latency_p50_s"
    LATENCY_P99_S = "latency_p99_s"


@dataclass(frozen=True, slots=True)
class Series:
    """Figures at ``start_s``, ``start_s + step_s``, … in seconds since 1970."""

    name: SeriesName
    start_s: int
    step_s: int
    values: tuple[float | None, ...]


class SeriesStore:
    """The series of all groups. Steps count from 1970, so that all series agree."""

    def __init__(self) -> None:
        self._rings: dict[str, dict[SeriesName, _Ring]] = {}

    def add(self, group: str, step: int, figures: Mapping[SeriesName, float | None]) -> None:
        rings = self._rings.setdefault(group, {})
        for name, figure in figures.items():
            rings.setdefault(name, _Ring(step)).put(step, math.nan if figure is None else figure)

    def forget(self, group: str) -> None:
        self._rings.pop(group, None)

    def groups(self) -> tuple[str, ...]:
        return tuple(self._rings)

    def read(self, group: str, name: SeriesName, since_s: float) -> Series:
        ring = self._rings.get(group, {}).get(name)
        if ring is None:
            return Series(name, math.ceil(since_s / STEP_S) * STEP_S, STEP_S, ())
        first, values = ring.since(math.ceil(since_s / STEP_S))
        return Series(name, first * STEP_S, STEP_S, tuple(None if math.isnan(value) else value for value in values))


class _Ring:
    """``first`` is the step of the oldest figure that is kept."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._values = array("f")

    def put(self, step: int, value: float) -> None:
        """Puts a value at a later step than any before; what lies between was not known."""
        missing = step - self._first - len(self._values)
        if missing < 0:
            return
        self._values.extend([math.nan] * min(missing, KEPT_STEPS))
        self._values.append(value)
        surplus = max(0, len(self._values) - KEPT_STEPS)
        del self._values[:surplus]
        self._first = step + 1 - len(self._values)

    def since(self, step: int) -> tuple[int, array[float]]:
        skipped = min(max(0, step - self._first), len(self._values))
        return self._first + skipped, self._values[skipped:]


async def record_series(looks: GroupLooks, store: SeriesStore) -> None:
    """Adds the figures of every group at each step, until it is cancelled."""
    counters: dict[str, _Counters] = {}
    while True:
        now = time.time()
        await asyncio.sleep(STEP_S - now % STEP_S)
        step = int(time.time()) // STEP_S
        for view in looks.views:
            before, counters[view.group] = counters.get(view.group), _Counters.of(view)
            store.add(view.group, step, dict(_figures(view, before, counters[view.group])))
        for gone in set(store.groups()) - {view.group for view in looks.views}:
            store.forget(gone)
            counters.pop(gone, None)


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters that only grow while a process lives: changes published, and changes that each worker applied."""

    published: int | None
    applied: Mapping[str, int]

    @classmethod
    def of(cls, view: GroupView) -> _Counters:
        status = view.status
        if status is None:
            return cls(None, {})
        published = None if status.replicator is None else status.replicator.changes
        return cls(published, {worker.name: worker.changes for worker in status.workers})


def _figures(view: GroupView, before: _Counters | None, now: _Counters) -> Iterator[tuple[SeriesName, float | None]]:
    status = view.status
    if status is None or view.problem:
        yield from ((name, None) for name in SeriesName)
        return
    lags = [worker.lag_s for worker in status.workers if worker.lag_s is not None]
    yield SeriesName.PUBLISHED_PER_S, None if before is None else _rate(before.published, now.published)
    yield SeriesName.APPLIED_PER_S, None if before is None else _applied_rate(before, now)
    yield SeriesName.LAG_S, max(lags, default=None)
    yield SeriesName.SLOT_RETAINED_BYTES, None if status.slot is None else status.slot.lag_bytes
    yield SeriesName.STREAM_BYTES, None if status.stream is None else status.stream.bytes
    yield SeriesName.STREAM_MAX_BYTES, None if status.stream is None else status.stream.max_bytes
    yield SeriesName.DEAD_LETTERS, sum(worker.dead_letters for worker in status.workers)
    for name, latencies in (
        (SeriesName.LATENCY_P50_S, [worker.latency_p50_s for worker in status.workers]),
        (SeriesName.LATENCY_P99_S, [worker.latency_p99_s for worker in status.workers]),
    ):
        yield name, max((each for each in latencies if each is not None), default=None)


def _applied_rate(before: _Counters, now: _Counters) -> float | None:
    rates = [_rate(before.applied.get(worker), changes) for worker, changes in now.applied.items()]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _rate(before: int | None, now: int | None) -> float | None:
    """Returns None if a process began again: its count did too."""
    return None if before is None or now is None or now < before else (now - before) / STEP_S
