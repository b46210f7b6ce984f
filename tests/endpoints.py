"""What a process shows at its endpoints, as a client finds it; and settings for processes that show it, or nothing."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any, NamedTuple

import orjson
from prometheus_client.parser import text_string_to_metric_families

from pgsluice.shared.config.metrics_settings import MetricsSettings
from pgsluice.shared.metrics.declared_metrics import METRICS
from pgsluice.shared.metrics.metric import Shown
from tests.servers import PgsluiceProcess

NO_METRICS = MetricsSettings("", 200, "", {})
ANY_PORT = MetricsSettings("127.0.0.1:0", 200, "", {})

_COMMON_LABELS = {"group", "worker"}


class Answer(NamedTuple):
    """``body`` as it came."""

    status: int
    body: bytes

    @property
    def content(self) -> Any:
        return orjson.loads(self.body)


def ask(address: str, path: str, method: str = "GET", timeout_s: float = 10.0) -> Answer:
    """``address`` is ``http://HOST:PORT``."""
    request = urllib.request.Request(address + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return Answer(answer.status, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read())


def address_of(process: PgsluiceProcess) -> str:
    """Where a process shows its metrics; waits until its log says that."""
    process.wait_for_log("metrics and health are shown")
    line = next(line for line in process.log().splitlines() if "metrics and health are shown" in line)
    return next(field.removeprefix("url=") for field in line.split() if field.startswith("url="))


Scrape = dict[str, dict[tuple[str, ...], float]]
"""Name of a sample → the values, by those of its own labels, which are in the order of their names."""


def scraped(address: str) -> Scrape:
    """What Prometheus's own parser makes of /metrics, without the labels that all metrics have."""
    found: Scrape = {}
    for family in text_string_to_metric_families(ask(address, "/metrics").body.decode()):
        for sample in family.samples:
            own = tuple(value for name, value in sorted(sample.labels.items()) if name not in _COMMON_LABELS)
            found.setdefault(sample.name, {})[own] = sample.value
    return found


def not_shown(address: str, shown: Shown) -> set[str]:
    """Declared metrics of such a process that a scrape lacks. Fails when it has one that is not declared, or has other labels, or
    is of another type."""
    declared = {metric.name: metric for metric in METRICS if metric.shown & shown}
    seen = set()
    for family in text_string_to_metric_families(ask(address, "/metrics").body.decode()):
        metric = declared[family.name + "_total" if family.type == "counter" else family.name]
        assert metric.kind.value == family.type
        assert family.documentation == metric.help
        own_labels = {frozenset(sample.labels) - _COMMON_LABELS - {"le"} for sample in family.samples}
        assert own_labels == {frozenset(metric.labels)}, metric.name
        seen.add(metric.name)
    return declared.keys() - seen
