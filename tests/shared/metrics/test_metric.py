"""Histograms, tables by name, and the declarations."""

from __future__ import annotations

import re
from collections import Counter

from pgsluice.shared.metrics.declared_metrics import METRICS
from pgsluice.shared.metrics.metric import OTHER_TABLES, Histogram, HistogramValue, MetricKind, TableNames
from tests.misses import no_misses


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


def test_names_follow_prometheus() -> None:
    misnamed = (each.name for each in METRICS if not re.fullmatch(r"pgsluice_[a-z_]+", each.name))
    no_misses(misnamed, "a metric is called pgsluice_, and then words in small letters")
    unlike = (each.name for each in METRICS if each.name.endswith("_total") != (each.kind is MetricKind.COUNTER))
    no_misses(unlike, "a counter's name ends in _total, and no other name does")
    no_misses((each.name for each in METRICS if {"group", "worker", "le"} & set(each.labels)), "has a label that others have")
    no_misses((each.name for each in METRICS if not each.help or each.help.endswith(".")), "help is a text without a full stop")


def test_every_metric_has_a_name_of_its_own() -> None:
    times = Counter(metric.name for metric in METRICS)
    no_misses((name for name, count in times.items() if count > 1), "declared more than once: call one of them otherwise")
