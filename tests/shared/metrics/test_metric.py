"""Histograms, tables by name, and the declarations."""

from __future__ import annotations

import re

import pytest

from pgsluice.shared.metrics.declared_metrics import METRICS
from pgsluice.shared.metrics.metric import OTHER_TABLES, Histogram, HistogramValue, Metric, MetricKind, TableNames


def test_a_histogram_counts_each_observation_once() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 1.1, 10.0, 11.0, 1000.0):
        histogram.observe(value)
    assert histogram.read() == HistogramValue((1.0, 10.0), (2, 2, 2), 1023.6)


def test_tables_beyond_the_bound_share_a_label_and_those_within_keep_theirs() -> None:
    names = TableNames(2)
    seen = [names.label(table) for table in ("a", "b", "c", "a", "d", "b")]
    assert seen == ["a", "b", OTHER_TABLES, "a", OTHER_TABLES, "b"]
    assert TableNames(0).label("a") == OTHER_TABLES


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"pgsluice_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert not set(metric.labels) & {"group", "worker", "le"}
    assert metric.help
    assert not metric.help.endswith(".")


def test_every_metric_has_a_name_of_its_own() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
