"""Samples sent to an OpenTelemetry collector, every PUSH_INTERVAL_S, by OpenTelemetry's own exporter (OTLP over HTTP).

They are the samples of /metrics, under the same names. OpenTelemetry's instruments are not used: they would count
everything a second time, and do not accept an existing histogram.
"""

from __future__ import annotations

import logging
import os
import socket
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, assert_never
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as PushedMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pgsluice.shared import telemetry
from pgsluice.shared.config.metrics_settings import MetricsSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.metrics.metric import Metric, MetricKind, Sample
from pgsluice.shared.metrics.vitals import Vitals
from pgsluice.shared.process.program_version import program_version
from pgsluice.shared.process.retrying import RetryNews

PUSH_INTERVAL_S = 15.0
REQUEST_TIMEOUT_S = 10.0
END_DEADLINE_S = 2.0

_PATH = "/v1/metrics"
_LONGEST_REASON = 200

log = telemetry.logger(__name__)

Ended = Callable[[BaseException], None]


class Push:
    """Sends from its creation on, until ``close``, which sends once more. An unreachable collector changes nothing;
    ``on_ended`` is called when the sending itself ended."""

    def __init__(self, settings: MetricsSettings, vitals: Vitals, on_ended: Ended, interval_s: float = PUSH_INTERVAL_S) -> None:
        self._vitals = vitals
        self._on_ended = on_ended
        self._interval_s = interval_s
        self._started_ns = time.time_ns()
        self._excuse = _Excuse()
        endpoint = endpoint_url(settings.otlp_endpoint)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, headers=settings.otlp_headers, timeout=REQUEST_TIMEOUT_S)
        self._news = RetryNews()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgsluice-otlp", daemon=True)
        self._thread.start()
        log.info("metrics are pushed", interval_s=interval_s, host=urlsplit(endpoint).netloc)

    def close(self) -> None:
        """Gives the last push END_DEADLINE_S."""
        self._closing.set()
        self._thread.join(END_DEADLINE_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        try:
            while not self._closing.wait(self._interval_s):
                self._push()
            self._push()
        except Exception as error:  # noqa: BLE001  whoever is told ends the process
            self._on_ended(error)

    def _push(self) -> None:
        if self._exporter.export(self._data()) is not MetricExportResult.SUCCESS and not self._closing.is_set():
            # no cause: the collector of metrics is no part of the pipeline
            error = TransientError(f"the collector did not take the metrics ({self._excuse.take()})")
            if self._news.is_due(error):
                log.warning("metrics could not be pushed, trying again", reason=error.fact)

    def _data(self) -> MetricsData:
        resource = Resource(
            {
                "service.name": "pgsluice",
                "service.version": program_version(),
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        by_metric: dict[Metric, list[Sample]] = {}
        for sample in self._vitals.samples():
            by_metric.setdefault(sample.metric, []).append(sample)
        pushed = [self._pushed(metric, samples) for metric, samples in by_metric.items()]
        scope = ScopeMetrics(InstrumentationScope("pgsluice", program_version()), pushed, "")
        return MetricsData([ResourceMetrics(resource, [scope], "")])

    def _pushed(self, metric: Metric, samples: list[Sample]) -> PushedMetric:
        now = time.time_ns()
        data: Gauge | Sum | Histogram
        match metric.kind:
            case MetricKind.GAUGE:
                data = Gauge(list(self._numbers(samples, now)))
            case MetricKind.COUNTER:
                numbers = list(self._numbers(samples, now))
                data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            case MetricKind.HISTOGRAM:
                data = Histogram(list(self._histograms(samples, now)), AggregationTemporality.CUMULATIVE)
            case unreachable:
                assert_never(unreachable)
        unit = "s" if "_seconds" in metric.name else "By" if "_bytes" in metric.name else "1"
        return PushedMetric(metric.name, metric.help, unit, data)

    def _numbers(self, samples: list[Sample], now: int) -> Iterator[NumberDataPoint]:
        for sample in samples:
            yield NumberDataPoint(self._attributes(sample), self._started_ns, now, sample.value)

    def _histograms(self, samples: list[Sample], now: int) -> Iterator[HistogramDataPoint]:
        for sample in samples:
            value = sample.histogram
            assert value is not None
            unknown: Any = None  # least and greatest, which the protocol lets one leave out
            yield HistogramDataPoint(
                self._attributes(sample),
                self._started_ns,
                now,
                sum(value.counts),
                value.sum,
                value.counts,
                value.bounds,
                unknown,
                unknown,
            )

    def _attributes(self, sample: Sample) -> dict[str, str]:
        return self._vitals.labels | dict(zip(sample.metric.labels, sample.labels, strict=True))


def endpoint_url(given: str) -> str:
    """OTLP's path is added to an address that has none (OTLP exporter specification, "Endpoint URLs for OTLP/HTTP")."""
    return given if urlsplit(given).path.strip("/") else given.rstrip("/") + _PATH


class _Excuse(logging.Handler):
    """Turns the exporter's log of a failure, its only report, into the reason in pgsluice's log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._text = ""
        library = logging.getLogger("opentelemetry")
        library.propagate = False
        library.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._text = record.getMessage()

    def take(self) -> str:
        text, self._text = self._text, ""
        return textwrap.shorten(text, _LONGEST_REASON, placeholder=" …") or "no reason given"
