"""Metrics, their samples, and two counters: histograms, and tables by their names.

The working code adds to plain numbers; ``Sample`` objects are made of them at a scrape. Both exports (Prometheus text,
OTLP) use the same samples.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class MetricKind(enum.Enum):
    """``value`` is Prometheus's word."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Shown(enum.Flag):
    """The processes that export a metric."""

    REPLICATOR = enum.auto()
    WORKER = enum.auto()
    BOTH = REPLICATOR | WORKER


class HistogramValue(NamedTuple):
    """``counts[i]`` is how many observations were at most ``bounds[i]`` and more than the bound before; the last one, beyond all
    bounds, has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` is the one that Prometheus shows, in base units, with ``_total`` at the end of a counter's. ``labels``
    are those in addition to ``group`` and ``worker``, which all have."""

    name: str
    kind: MetricKind
    help: str
    shown: Shown
    labels: tuple[str, ...] = ()

    def at(self, value: float, *labels: str) -> Sample:
        assert len(labels) == len(self.labels), self.name
        return Sample(self, labels, value)

    def of(self, histogram: HistogramValue, *labels: str) -> Sample:
        """Returns a sample of a HISTOGRAM."""
        assert len(labels) == len(self.labels), self.name
        return Sample(self, labels, histogram.sum, histogram)

    def one_of(self, chosen: str, every: Iterable[str], *labels: str) -> list[Sample]:
        """Returns a sample for each of ``every``, the metric's last label: 1 for the one that is the case, 0 for the
        others."""
        return [self.at(float(each == chosen), *labels, each) for each in every]


class Sample(NamedTuple):
    """A metric's current value, for these values of its labels. A HISTOGRAM's has a ``histogram``."""

    metric: Metric
    labels: tuple[str, ...]
    value: float
    histogram: HistogramValue | None = None


Collect = Callable[[], list[Sample]]
"""Returns the current samples. Any thread may call; a value that must be read first takes a moment (``asked_looks``)."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Buckets: from a commit that is applied at once to one that waited for a target over lunch."""
CHANGES = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7)
BYTES = (1e3, 1e4, 1e5, 1e6, 4e6, 16e6, 64e6, 256e6, 1e9)


class Histogram:
    """Counts observations. One thread observes; any may read, and sees all but perhaps the newest."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> HistogramValue:
        return HistogramValue(self._bounds, tuple(self._counts), self._sum)


OTHER_TABLES = "other"


class TableNames:
    """Bounds the values of a label: the first ``most`` tables have their own, all later ones share OTHER_TABLES. A name that has
    its own keeps it, so no counter ever goes back."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, table: str) -> str:
        if table not in self._known:
            if len(self._known) >= self._most:
                return OTHER_TABLES
            self._known.add(table)
        return table
