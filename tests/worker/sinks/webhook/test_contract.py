"""The contract of all sinks, with a real server as the destination."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.testing import Promise
from pgsluice.testing.tried_batches import counting_events, followed_accounts
from pgsluice.worker.sinks.webhook.sink import WebhookSink
from tests.servers import NatsServer
from tests.servers.http_server import Answer, HttpServer, Received
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.contract import AT_LEAST_ONCE, SinkContract
from tests.worker.sinks.webhook.sinks import new_sink


class WebhookDestination:
    def __init__(self, receiver: HttpServer, nats: NatsSettings, group: str) -> None:
        self._receiver = receiver
        self._nats = nats
        self._group = group

    def new_sink(self) -> WebhookSink:
        return new_sink(self._nats, self._group, self._receiver, batch_size=3)

    def delivered(self) -> list[int]:
        return counting_events(self._receiver.objects())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self._receiver.objects())

    def refuse(self, *events: int) -> None:
        def answer(request: Received) -> Answer:
            return Answer(400 if any(line["after"]["id"] in events for line in request.objects) else 200)

        self._receiver.answer = answer


class TestWebhook(SinkContract):
    """With several changes in a request, which may be refused in part. What else the form of requests changes is in
    ``test_sink``: the order of a key's changes, and what a successor repeats."""

    kind = "webhook"
    promises = AT_LEAST_ONCE | {Promise.CATCH_UP, Promise.REFUSALS}

    @pytest.fixture
    def destination(self, nats_server: NatsServer, group: str) -> Iterator[WebhookDestination]:
        ensure_bucket(nats_server.settings(), group)
        with HttpServer() as receiver:
            yield WebhookDestination(receiver, nats_server.settings(), group)
