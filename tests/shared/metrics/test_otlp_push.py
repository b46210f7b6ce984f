"""What a collector is sent, by a collector that takes requests apart as the protocol has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from pgsluice.shared.config.metrics_settings import MetricsSettings
from pgsluice.shared.metrics.otlp_push import Push, endpoint_url
from pgsluice.shared.process.pulse import Activity
from tests.logged import fields_of
from tests.shared.metrics.vitals_of import pulse_of, vitals_of
from tests.waiting import wait_until

REFUSED = "metrics could not be pushed, trying again"


class Collector:
    """Takes what comes, or answers with ``status``."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, ExportMetricsServiceRequest]] = []
        """Path, the header Authorization, content."""
        self.status = 200
        outer = self

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.status == 200:
                    decoded = ExportMetricsServiceRequest.FromString(body)
                    outer.requests.append((self.path, self.headers["Authorization"], decoded))
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Request)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@contextmanager
def pushing(url: str, interval_s: float = 0.05) -> Iterator[None]:
    ended: list[BaseException] = []
    settings = MetricsSettings("", 200, url, {"Authorization": "Bearer hunter2"})
    push = Push(settings, vitals_of(pulse_of(Activity.WORKING)), ended.append, interval_s)
    try:
        yield
    finally:
        push.close()
    assert ended == []


def test_a_collector_gets_the_samples_that_the_endpoint_shows(collector: Collector) -> None:
    with pushing(collector.url):
        wait_until(lambda: len(collector.requests) >= 2, what="two pushes")
    path, authorization, request = collector.requests[0]
    assert (path, authorization) == ("/v1/metrics", "Bearer hunter2")
    [resource] = request.resource_metrics
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert attributes["service.name"] == "pgsluice"
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}

    [lag] = metrics["pgsluice_apply_lag_bytes"].gauge.data_points
    assert (lag.as_int, {each.key: each.value.string_value for each in lag.attributes}) == (
        1234,
        {"group": "orders", "worker": "pg"},
    )
    applied = metrics["pgsluice_applied_changes_total"].sum
    assert (applied.is_monotonic, applied.aggregation_temporality, applied.data_points[0].as_int) == (True, 2, 7)
    assert applied.data_points[0].start_time_unix_nano < applied.data_points[0].time_unix_nano
    [stage] = metrics["pgsluice_batch_seconds"].histogram.data_points
    assert (stage.count, sum(stage.bucket_counts), len(stage.bucket_counts)) == (4, 4, len(stage.explicit_bounds) + 1)
    assert (stage.HasField("min"), metrics["pgsluice_batch_seconds"].unit) == (False, "s")


def test_the_end_sends_once_more(collector: Collector) -> None:
    with pushing(collector.url, interval_s=3600):
        pass
    assert len(collector.requests) == 1


def test_a_collector_that_refuses_is_said_once_and_without_secrets(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    def refusals() -> list[str]:
        return [fields_of(each)["reason"] for each in caplog.records if each.message == REFUSED]

    collector.status = 403
    with pushing(collector.url):
        wait_until(refusals, what="a line about it")
        collector.status = 200
        wait_until(lambda: collector.requests, what="a push that is taken")
    [reason] = refusals()
    assert "403" in reason
    assert "hunter2" not in caplog.text + reason


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://a:4318", "http://a:4318/v1/metrics"),
        ("http://a:4318/", "http://a:4318/v1/metrics"),
        ("https://a/otlp/v1/metrics", "https://a/otlp/v1/metrics"),
    ],
)
def test_an_address_without_a_path_gets_that_of_the_protocol(given: str, url: str) -> None:
    assert endpoint_url(given) == url
