"""What outlives a server that is killed: sessions, answers that it gave, and the numbers of views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.console.server.served import Served
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

GROUP = "outlived"
ORDER, KEY = {"verb": "retry", "tables": ["t"]}, {"Idempotency-Key": "the one"}


@dataclass(frozen=True, slots=True)
class Outlived:
    """A server that was killed and started again; the rest is from before that."""

    server: Served
    cookies: dict[str, str]
    answer: str
    numbers: list[int]


def ordered(client: httpx.Client) -> str:
    return client.post(f"/groups/{GROUP}/orders", json=ORDER, headers=KEY).text


def numbers(client: httpx.Client) -> list[int]:
    client.get(f"/groups/{GROUP}")
    return [view["number"] for view in client.get("/groups").json()["groups"]]


@pytest.fixture(scope="module")
def outlived(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outlived]:
    ensure_bucket(nats_server.settings(), GROUP)
    with Served(nats_server.url, tmp_path_factory.mktemp("outlived")) as server:
        with server.browser() as browser, server.client() as client:
            before = Outlived(server, dict(browser.cookies), ordered(client), numbers(client))
        server.kill()
        server.start()
        yield before


def test_a_session_outlives_the_server(outlived: Outlived) -> None:
    assert httpx.get(f"{outlived.server.address}/api/v1/", cookies=outlived.cookies).json()["who"] == "admin"


def test_an_answer_outlives_the_server_that_gave_it(outlived: Outlived) -> None:
    with outlived.server.client() as client:
        assert ordered(client) == outlived.answer


def test_numbers_go_on_where_an_earlier_server_ended(outlived: Outlived) -> None:
    """Whoever kept views of the server before would take those of the next one for older ones."""
    with outlived.server.client() as client:
        assert max(outlived.numbers) < min(numbers(client))


def test_it_ends_when_it_is_told_to(outlived: Outlived) -> None:
    """The last one here, as it takes the server from the others."""
    outlived.server.process.terminate()
    assert outlived.server.process.wait() == 0
    assert "server stopped" in outlived.server.process.log()
