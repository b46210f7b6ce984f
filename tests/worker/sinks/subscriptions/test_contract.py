"""The contract of all sinks, but for copied rows: of these there are no events."""

from __future__ import annotations

import pytest

from pgsluice.testing import Promise
from pgsluice.testing.tried_batches import counting_events, followed_accounts
from pgsluice.worker.sinks.subscriptions.sink import SubscriptionsSink
from tests.servers.http_server import HttpServer
from tests.worker.sinks.contract import AT_LEAST_ONCE, SinkContract
from tests.worker.sinks.subscriptions.subscribed import Stage

pytestmark = pytest.mark.timeout(120)


class SubscribedDestination:
    """One receiver that subscribed to everything."""

    def __init__(self, stage: Stage, receiver: HttpServer) -> None:
        self._stage = stage
        self._receiver = receiver
        stage.subscribe(receiver, "all")

    def new_sink(self) -> SubscriptionsSink:
        return self._stage.new_sink(patience_s=60.0, batch_size=3)

    def delivered(self) -> list[int]:
        return counting_events(self._receiver.objects())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self._receiver.objects())


class TestSubscriptions(SinkContract):
    kind = "subscriptions"
    promises = AT_LEAST_ONCE - {Promise.COPIED_ROWS}

    @pytest.fixture
    def destination(self, stage: Stage, receiver: HttpServer) -> SubscribedDestination:
        return SubscribedDestination(stage, receiver)
