"""Which node is asked, by what way, and what it is shown: a server that keeps its requests stands in for the nodes."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from pgsluice.shared.errors import OverloadError, TerminalError, TransientError
from pgsluice.worker.sinks.search.server_connection import JSON, ServerConnection
from tests.servers.child import free_port
from tests.servers.http_server import Answer, Failure, HttpServer
from tests.worker.sinks.search.sinks import search_settings

SECRET = "s3cret:with colon"
BASIC = "Basic " + base64.b64encode(f"pgsluice:{SECRET}".encode()).decode()


@pytest.fixture
def node() -> Iterator[HttpServer]:
    with HttpServer() as server:
        server.answer = lambda request: Answer(body=b"{}")
        yield server


@pytest.fixture
def other_node() -> Iterator[HttpServer]:
    with HttpServer() as server:
        server.answer = lambda request: Answer(body=b"{}")
        yield server


def root(server: HttpServer) -> str:
    return server.url.partition("/hook")[0]


def connection_to(*urls: str, **changed: Any) -> ServerConnection:
    return ServerConnection(search_settings("", **{"urls": urls} | changed))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"user": "pgsluice", "password": SECRET}, BASIC),
        ({"api_key": SECRET}, f"ApiKey {SECRET}"),
        ({"user": "pgsluice", "password": SECRET, "api_key": "key"}, "ApiKey key"),
        ({}, None),
    ],
)
def test_a_node_is_shown_what_opens_it(node: HttpServer, given: dict[str, str], shown: str | None) -> None:
    connection_to(root(node), **given).ask("GET", "/")
    assert node.requests[0].headers.get("authorization") == shown


@pytest.mark.parametrize("given", [{"user": "pgsluice", "password": SECRET}, {"api_key": SECRET}])
def test_what_opens_a_node_is_in_no_error(node: HttpServer, given: dict[str, str]) -> None:
    node.answer = lambda request: Answer(401, body=b'{"error":{"type":"security_exception","reason":"%b"}}' % SECRET.encode())
    with pytest.raises(TerminalError, match=r"status 401 .security_exception") as raised:
        connection_to(root(node), **given).ask("GET", "/")
    assert SECRET not in str(raised.value)


def test_a_node_that_is_away_is_passed_over_and_the_next_one_is_kept(node: HttpServer) -> None:
    connection = connection_to(f"http://127.0.0.1:{free_port()}", root(node))
    for _ in range(3):
        connection.ask("GET", "/")
    assert len({each.peer_port for each in node.requests}) == 1


def test_a_path_of_the_url_goes_before_that_of_a_request(node: HttpServer) -> None:
    connection_to(f"{root(node)}/search/").ask("GET", "/_cat/indices")
    assert node.requests[0].target == "/search/_cat/indices"


def test_when_no_node_answers_the_error_says_so() -> None:
    with pytest.raises(TransientError, match="gave no answer"):
        connection_to(*(f"http://127.0.0.1:{free_port()}" for _ in range(2))).ask("GET", "/")


def test_what_one_node_had_no_answer_to_is_another_ones_next_request_but_not_as_it_stands(
    node: HttpServer, other_node: HttpServer
) -> None:
    """It may be too much for that one too: the caller makes it smaller."""
    node.answers = [Failure.HANG]
    connection = connection_to(root(node), root(other_node), timeout_s=1.0)
    with pytest.raises(OverloadError):
        connection.send("POST", "/_bulk", b"large", JSON, is_bulky=True)
    assert other_node.requests == []
    connection.send("POST", "/_bulk", b"half", JSON, is_bulky=True)
    assert [each.body for each in other_node.requests] == [b"half"]


def test_an_answer_without_end_is_not_read_to_its_end(node: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request that can be made smaller, less is asked for at once."""
    monkeypatch.setattr("pgsluice.worker.sinks.search.server_connection.MOST_ANSWER_BYTES", 1000)
    node.answer = lambda request: Answer(body=b" " * 1000)
    connection = connection_to(root(node))
    with pytest.raises(TerminalError, match="with 1000 bytes or more"):
        connection.ask("GET", "/")
    with pytest.raises(OverloadError, match="with 1000 bytes or more"):
        connection.send("POST", "/_mget", b"{}", JSON, is_bulky=True)


def test_a_small_question_goes_on_to_the_next_node(node: HttpServer, other_node: HttpServer) -> None:
    node.answers = [Failure.CLOSE]
    assert connection_to(root(node), root(other_node)).ask("GET", "/") == (200, {})
    assert len(other_node.requests) == 1


@pytest.mark.parametrize("allowed", [(), ("10.0.0.0/8",)])
def test_an_address_that_is_not_allowed_is_not_connected_to(node: HttpServer, allowed: tuple[str, ...]) -> None:
    with pytest.raises(TerminalError, match="search-allow-hosts"):
        connection_to(root(node), allow_hosts=allowed).ask("GET", "/")
    assert node.requests == []


class TestCertificates:
    @pytest.fixture
    def secure_node(self, authority: trustme.CA) -> Iterator[HttpServer]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        with HttpServer(context) as server:
            server.answer = lambda request: Answer(body=b"{}")
            yield server

    def test_a_node_that_the_given_file_vouches_for_is_trusted(self, secure_node: HttpServer, ca_file: str) -> None:
        assert connection_to(root(secure_node), ca_file=ca_file).ask("GET", "/") == (200, {})

    def test_a_node_nobody_vouches_for_is_shown_nothing(self, secure_node: HttpServer) -> None:
        with pytest.raises(TerminalError, match=r"is not trusted.*search-ca"):
            connection_to(root(secure_node), api_key=SECRET).ask("GET", "/")
        assert secure_node.requests == []
