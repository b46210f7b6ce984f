"""What a check says of a target stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.preflight.finding import Severity
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import LARGE_NOTE, batch
from pgsluice.worker.sinks.incoming import NOTHING_KNOWN
from pgsluice.worker.sinks.nats.findings import find
from tests.servers import NatsServer
from tests.worker.sinks.nats.target import NatsDestination, nats_settings
from tests.worker.sinks.settings import worker_settings


@pytest.fixture
def destination(nats_server: NatsServer, group: str) -> NatsDestination:
    return NatsDestination(nats_server.settings(), group, max_bytes=3 << 20)


def test_a_stream_that_is_missing_or_ours_is_fine_and_a_full_one_is_told(
    destination: NatsDestination, nats_server: NatsServer, group: str
) -> None:
    worker, settings = worker_settings(group, nats_server.settings()), nats_settings(destination.stream)
    assert find(worker, settings, NOTHING_KNOWN) == []
    assert find(worker, replace(settings, stream="", group=f"{group}-next"), NOTHING_KNOWN) == []
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))
    assert find(worker, settings, NOTHING_KNOWN) == []
    apply(sink, batch(range(2, 7), note=LARGE_NOTE))
    sink.close()
    (full,) = find(worker, settings, NOTHING_KNOWN)
    assert (full.severity, full.check) == (Severity.WARNING, "nats-stream-room")


def test_a_stream_of_another_worker_is_an_error(destination: NatsDestination, nats_server: NatsServer, group: str) -> None:
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))
    sink.close()
    (found,) = find(worker_settings("another", nats_server.settings()), nats_settings(destination.stream), NOTHING_KNOWN)
    assert (found.severity, found.check) == (Severity.ERROR, "nats-stream-owner")
