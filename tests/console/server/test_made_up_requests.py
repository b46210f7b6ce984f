"""A viewer's requests, made up from the description: ``make fuzz`` asks many more, and as an administrator too."""

from __future__ import annotations

import pytest

from pgsluice.console.server.access.principal import Role
from tests.console.server.served import Served
from tests.fuzz.api_requests import ENDPOINTS, GROUP, Asker
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

EXAMPLES = 2
"""Of each operation that are right, and as many that are wrong."""


@pytest.mark.hypothesis
def test_a_viewer_is_answered_as_described_and_does_nothing_that_is_for_others(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), GROUP)
    viewer = Asker(served, Role.VIEWER)
    for endpoint in ENDPOINTS:
        viewer.ask(endpoint, EXAMPLES, is_repeatable=True)
