"""Row values go only to holders of the right to them: every request that sends them requires it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pgsluice.console.server.api.table import all_endpoints
from pgsluice.console.server.endpoint_table import Endpoint, Rows
from tests.console.server.served import Served
from tests.console.server.test_orders import SECRET, publish_letters
from tests.misses import no_misses
from tests.servers import NatsServer
from tests.servers.http_server import HttpServer
from tests.state_bucket import ensure_bucket

ENDPOINTS = all_endpoints("")
GROUP = "kept-within"
REFUSED = "may not see row values"

SENDING_BODIES = {
    "post_groups_group_orders": [({"verb": "add"}, True), *(({"verb": verb}, False) for verb in ("remove", "recopy", "retry"))]
}
"""Of endpoints whose bodies decide: each with whether rows go where they did not go before."""


@pytest.fixture(scope="module")
def blind(served: Served, nats_server: NatsServer) -> Iterator[Any]:
    """One who may do everything but see row values."""
    ensure_bucket(nats_server.settings(), GROUP)
    publish_letters(nats_server, GROUP, 1)
    with served.client(served.token("sees-no-rows", "admin")) as client:
        yield client


def is_refused(client: Any, endpoint: Endpoint, body: object) -> bool:
    """Nothing is done by it: names are of nothing that there is, and bodies lack what is wanted."""
    path = re.sub("{[a-z]+}", "nothing", endpoint.path.replace("{group}", GROUP))
    answer = client.request(endpoint.verb, path, **({"json": body} if endpoint.verb != "GET" else {}))
    assert str(SECRET + 1) not in answer.text, endpoint.name
    return answer.status_code == 403 and REFUSED in answer.text


def test_every_endpoint_says_whether_row_values_leave_by_it() -> None:
    silent = (endpoint.name for endpoint in ENDPOINTS if endpoint.rows is None)
    no_misses(silent, "say in its row of console/server/api what it does with row values: rows=Rows.STAY, ANSWERED or SENT")
    undecided = {endpoint.name for endpoint in ENDPOINTS if callable(endpoint.rows)}
    no_misses(undecided ^ SENDING_BODIES.keys(), "the bodies by which this endpoint sends rows are not tried here")


def test_whatever_makes_row_values_leave_asks_for_the_right_and_nothing_else_does(blind: Any) -> None:
    wrong = []
    for endpoint in ENDPOINTS:
        if endpoint.media_type == "text/event-stream":
            continue
        for body, leaves in SENDING_BODIES.get(endpoint.name, [({}, endpoint.rows is not Rows.STAY)]):
            tables = {"tables": ["nothing"]} if callable(endpoint.rows) else {}
            if is_refused(blind, endpoint, body | tables) != leaves:
                wrong.append(f"{endpoint.name} {body}")
    no_misses(wrong, "the right to row values is asked of who needs none, or not of who needs it")


def test_an_operator_without_the_right_has_nothing_posted_to_a_receiver(served: Served, blind: Any) -> None:
    path = f"/groups/{GROUP}/webhooks"
    with HttpServer() as receiver, served.client(served.token("posts-nothing", "operator")) as operator:
        for verb, body in (
            ("subscribe", {"url": f"http://127.0.0.1:{receiver.port}/mine"}),
            ("replay", {"id": "0" * 16}),
            ("resume", {"id": "0" * 16}),
        ):
            answer = operator.post(f"{path}/{verb}", json=body)
            assert (answer.status_code, REFUSED in answer.text) == (403, True), answer.text
        assert receiver.requests == []
