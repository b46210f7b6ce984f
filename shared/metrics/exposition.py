"""Samples as Prometheus's text (exposition formats, text format 0.0.4), by Prometheus's own library."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from pgsluice.shared.metrics.metric import HistogramValue, Metric, MetricKind, Sample
from pgsluice.shared.metrics.vitals import Vitals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """A separate registry, so that only pgsluice's metrics are shown."""

    def __init__(self, vitals: Vitals) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Families(vitals))

    def text(self) -> bytes:
        """Returns the current values."""
        return generate_latest(self._registry)


class _Families(Collector):
    """All samples of one metric follow each other, as the format wants it."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals

    def collect(self) -> Iterator[Family]:
        by_metric: dict[Metric, list[Sample]] = {}
        for sample in self._vitals.samples():
            by_metric.setdefault(sample.metric, []).append(sample)
        common = self._vitals.labels
        for metric, samples in by_metric.items():
            yield _family(metric, samples, tuple(common), tuple(common.values()))


def _family(metric: Metric, samples: list[Sample], names: tuple[str, ...], values: tuple[str, ...]) -> Family:
    labels = (*names, *metric.labels)
    match metric.kind:
        case MetricKind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.help, labels=labels)
            for sample in samples:
                counter.add_metric((*values, *sample.labels), sample.value)
            return counter
        case MetricKind.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=labels)
            for sample in samples:
                gauge.add_metric((*values, *sample.labels), sample.value)
            return gauge
        case MetricKind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
            for sample in samples:
                assert sample.histogram is not None
                histogram.add_metric((*values, *sample.labels), _buckets(sample.histogram), sample.value)
            return histogram
        case unreachable:
            assert_never(unreachable)


def _buckets(value: HistogramValue) -> list[tuple[str, float]]:
    """Each counts what is at most its bound, the buckets before it included."""
    buckets, count = [], 0
    for bound, counted in zip((*value.bounds, math.inf), value.counts, strict=True):
        count += counted
        buckets.append(("+Inf" if bound == math.inf else str(bound), float(count)))
    return buckets
