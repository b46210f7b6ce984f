"""The fake OpenSearch and the real one answer alike, and the proxy in front of them does what it is told."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from tests.search_servers import DOES_NOT_FIT, on_real_servers
from tests.servers.http_proxy import Cut, Exchange, Fault, HttpProxy, Refusal
from tests.servers.opensearch import FakeOpenSearch, SearchServer, SearchServerError
from tests.waiting import wait_until

INDEX = {
    "settings": {"index": {"number_of_replicas": 0, "gc_deletes": "10m"}},
    "mappings": {"dynamic": "strict", "properties": {"id": {"type": "long"}, "name": {"type": "keyword"}}},
}


@pytest.fixture
def index(search_server: SearchServer, group: str) -> str:
    """An alias, of an index that has its name with ``-1``."""
    search_server.ask("PUT", f"/{group}-1", INDEX | {"aliases": {group: {}}})
    return group


def line(operation: str, index: str, version: int, document: str | None = None, key: str = "1") -> bytes:
    head = f'{{"{operation}":{{"_index":"{index}","_id":"{key}","version":{version},"version_type":"external_gte"}}}}\n'
    return (head + ("" if document is None else document + "\n")).encode()


def statuses(server: SearchServer, *lines: bytes) -> list[tuple[int, str]]:
    """Of each item of one request, with what is wrong."""
    items: list[dict[str, Any]] = server.ask("POST", "/_bulk?require_alias=true", b"".join(lines))["items"]
    outcomes = [outcome for item in items for outcome in item.values()]
    return [(outcome["status"], outcome.get("error", {}).get("type", "")) for outcome in outcomes]


def test_versions_decide_which_write_counts(search_server: SearchServer, index: str) -> None:
    assert statuses(
        search_server,
        line("index", index, 10, '{"id":1}'),
        line("index", index, 10, '{"id":1}'),
        line("index", index, 9, '{"id":2}'),
        line("delete", index, 11),
        line("index", index, 10, '{"id":1}'),
        line("index", index, 1 << 62, '{"id":3}'),
        line("delete", index, 5, key="2"),
    ) == [
        (201, ""),
        (200, ""),
        (409, "version_conflict_engine_exception"),
        (200, ""),
        (409, "version_conflict_engine_exception"),
        (201, ""),
        (404, ""),
    ]
    assert search_server.documents(index) == {"1": (1 << 62, {"id": 3})}


def test_a_document_that_does_not_fit_fails_alone(search_server: SearchServer, index: str) -> None:
    found = statuses(
        search_server,
        line("index", index, 1, '{"id":1}'),
        line("index", index, 1, '{"id":"x"}', "2"),
        line("index", index, 1, '{"id":1,"new":2}', "3"),
        line("index", f"{index}-none", 1, '{"id":1}', "4"),
        line("index", f"{index}-1", 1, '{"id":1}', "5"),
    )
    assert re.fullmatch(DOES_NOT_FIT, found[1][1])
    assert found == [
        (201, ""),
        (400, found[1][1]),
        (400, "strict_dynamic_mapping_exception"),
        (404, "index_not_found_exception"),
        (404, "index_not_found_exception"),
    ]


def test_a_leaf_of_a_flat_object_that_is_no_term_is_refused_with_its_document(search_server: SearchServer, group: str) -> None:
    is_opensearch = search_server.ask("GET", "/")["version"].get("distribution") == "opensearch"
    properties = {"id": {"type": "long"}, "p": {"type": "flat_object" if is_opensearch else "flattened"}}
    search_server.ask("PUT", f"/{group}-1", {"mappings": {"properties": properties}, "aliases": {group: {}}})
    refused, taken = 400, 201
    documents = {
        f'{{"p":{{"a":"{"x" * 32_700}"}}}}': taken,
        f'{{"p":{{"a":"{"x" * 32_766}"}}}}': refused,
        f'{{"p":{{"a":{{"b":["é{"é" * 20_000}"]}}}}}}': refused,
        f'{{"p":{{"{"k" * 40_000}":1}}}}': refused,
        '{"id":1}': taken,
    }
    lines = [line("index", group, 1, text, str(key)) for key, text in enumerate(documents)]
    assert [status for status, _ in statuses(search_server, *lines)] == list(documents.values())


def test_what_is_blocked_can_be_written_when_the_block_is_gone(search_server: SearchServer, index: str) -> None:
    block = "index.blocks.read_only_allow_delete"
    search_server.ask("PUT", f"/{index}-1/_settings", {block: True})
    assert statuses(search_server, line("index", index, 1, '{"id":1}')) == [(429, "cluster_block_exception")]
    search_server.ask("PUT", f"/{index}-1/_settings", {block: None})
    assert statuses(search_server, line("index", index, 1, '{"id":1}')) == [(201, "")]


def test_an_alias_changes_hands_at_once(search_server: SearchServer, index: str) -> None:
    search_server.ask("PUT", f"/{index}-2", INDEX)
    statuses(search_server, line("index", index, 1, '{"id":1}'))
    actions = [{"remove_index": {"index": f"{index}-1"}}, {"add": {"index": f"{index}-2", "alias": index}}]
    search_server.ask("POST", "/_aliases", {"actions": actions})
    assert search_server.documents(index) == {}
    assert [each for each in search_server.indices() if each.startswith(index)] == [f"{index}-2"]
    with pytest.raises(SearchServerError, match="404"):
        search_server.ask("GET", f"/{index}-1")


@on_real_servers
def test_a_real_server_keeps_its_documents_through_a_kill(search_server: SearchServer, group: str) -> None:
    search_server.ask("PUT", f"/{group}-1", INDEX | {"aliases": {group: {}}})
    statuses(search_server, line("index", group, 7, '{"id":1}'))
    search_server.kill()
    search_server.start()
    assert search_server.documents(group) == {"1": (7, {"id": 1})}


def test_a_proxy_refuses_cuts_and_holds_back(fake_opensearch: FakeOpenSearch, group: str) -> None:
    released = threading.Event()
    with HttpProxy(fake_opensearch.port) as proxy:
        through = FakeOpenSearch()
        through.port = proxy.port

        def before(exchange: Exchange) -> Fault | None:
            match exchange.number:
                case 1:
                    return Refusal(429)
                case 2:
                    return Cut()
                case 4:
                    released.wait()
            return None

        proxy.before = before
        proxy.after = lambda exchange: Cut() if exchange.number == 3 else None
        with pytest.raises(SearchServerError, match="429"):
            through.ask("PUT", f"/{group}-1")
        with pytest.raises(ConnectionError):
            through.ask("PUT", f"/{group}-2")
        with pytest.raises(ConnectionError):
            through.ask("PUT", f"/{group}-3")
        asking = threading.Thread(target=through.ask, args=("PUT", f"/{group}-4"))
        asking.start()
        wait_until(lambda: proxy.arrived == 4, what="the request that is held back")
        through.ask("PUT", f"/{group}-5")
        assert [each for each in fake_opensearch.indices() if each.startswith(group)] == [f"{group}-3", f"{group}-5"]
        released.set()
        asking.join()
        assert f"{group}-4" in fake_opensearch.indices()
        assert [(each.number, each.status) for each in proxy.exchanges] == [(3, 200), (5, 200), (4, 200)]
