"""The rules and the dashboard that people copy, and what their queries name."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from pgsluice.shared.metrics.declared_metrics import METRICS
from pgsluice.shared.metrics.metric import Metric, MetricKind
from tests.servers.program import REPOSITORY

RULES = REPOSITORY / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = REPOSITORY / "deploy" / "grafana" / "pgsluice.json"
CASES = REPOSITORY / "tests" / "deploy" / "alert_cases.yaml"

OF_ALL = {"group", "worker", "instance", "job"}
_SELECTED = re.compile(r"\b(pgsluice_\w+)(?:\{([^}]*)\})?")
_VARIABLES = {"$group": ".*", "$worker": ".*", "$__rate_interval": "1m"}


@dataclass(frozen=True, slots=True)
class Selected:
    """A metric that a query reads, and the labels that it is chosen by."""

    name: str
    labels: frozenset[str]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """As Grafana would send them, for everything."""
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    for variable, value in _VARIABLES.items():
        queries = [query.replace(variable, value) for query in queries]
    return queries


def selected(query: str) -> set[Selected]:
    return {Selected(name, frozenset(re.findall(r"(\w+) *=", labels or ""))) for name, labels in _SELECTED.findall(query)}


def series_of(metric: Metric) -> set[str]:
    """Under which names Prometheus stores it."""
    if metric.kind is MetricKind.HISTOGRAM:
        return {metric.name + suffix for suffix in ("_bucket", "_sum", "_count")}
    return {metric.name}


LABELS: dict[str, set[str]] = {
    name: OF_ALL | set(metric.labels) | ({"le"} if name.endswith("_bucket") else set())
    for metric in METRICS
    for name in series_of(metric)
}
"""Of every series that there is."""
