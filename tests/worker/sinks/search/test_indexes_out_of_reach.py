"""Indexes that a server cannot give or take just now, for what a person or the cluster does to them: nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import orjson
import pytest

from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.batch import apply, write
from pgsluice.testing.changes_builder import insert, message, table, truncate, update
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.search_servers import on_real_servers
from tests.servers.http_proxy import Exchange, HttpProxy, Refusal
from tests.servers.opensearch import SearchServer
from tests.worker.sinks.search.conftest import OpenSink
from tests.worker.sinks.search.test_altered_indexes import ITEMS, RENAMED, ROWS, altered, row, titled, written

ORDERS = table("shop.orders", "id bigint", "note text", "body text")
INSERTED = [[message(1, insert(ORDERS, b"1", b"a", b"large"))]]
UPDATED = [[message(2, update(ORDERS, b"1", b"b", UNCHANGED))]]
BEFORE = {"1": (1000, {"id": 1, "note": "a", "body": "large"})}
AFTER = {"1": (2000, {"id": 1, "note": "b", "body": "large"})}


@pytest.fixture
def proxy(search_server: SearchServer) -> Iterator[HttpProxy]:
    with HttpProxy(search_server.port) as proxy:
        yield proxy


@pytest.fixture
def sink(open_sink: OpenSink, proxy: HttpProxy) -> SearchSink:
    """It has one document."""
    sink = open_sink(proxy.url)
    apply(sink, INSERTED)
    return sink


def answering(part: str, method: str, answer: Refusal) -> Callable[[Exchange], Refusal | None]:
    """In the server's place, to requests of that kind."""
    return lambda exchange: answer if part in exchange.target and exchange.method == method else None


def unread(group: str, kind: str) -> Refusal:
    """What a server says of a document that it cannot read: the request as a whole is a success."""
    error = {"type": kind, "reason": "secret"}
    said = {"_index": f"{group}_shop_orders-000001-write", "_id": "1", "error": error | {"root_cause": [error]}}
    return Refusal(200, body=orjson.dumps({"docs": [said]}))


@pytest.mark.parametrize("kind", ["no_shard_available_action_exception", "index_closed_exception"])
def test_a_document_that_cannot_be_read_now_is_not_one_that_is_missing(
    sink: SearchSink, proxy: HttpProxy, search_server: SearchServer, group: str, kind: str
) -> None:
    proxy.before = answering("/_mget", "POST", unread(group, kind))
    with pytest.raises(TransientError, match=f"does not give documents of index '{group}_shop_orders-000001' .{kind}"):
        apply(sink, UPDATED)
    assert search_server.documents(f"{group}_shop_orders") == BEFORE
    proxy.before = lambda exchange: None
    apply(sink, UPDATED)
    assert search_server.documents(f"{group}_shop_orders") == AFTER


@pytest.mark.parametrize("kind", ["index_not_found_exception", "security_exception", "illegal_argument_exception"])
def test_a_document_that_can_never_be_read_stops_the_worker_and_stays(
    sink: SearchSink, proxy: HttpProxy, search_server: SearchServer, group: str, kind: str
) -> None:
    proxy.before = answering("/_mget", "POST", unread(group, kind))
    with pytest.raises(TerminalError, match=kind) as raised:
        apply(sink, UPDATED)
    assert "secret" not in str(raised.value)
    assert search_server.documents(f"{group}_shop_orders") == BEFORE


def test_an_alias_that_a_restored_index_has_too_stops_the_worker(
    sink: SearchSink, search_server: SearchServer, group: str
) -> None:
    """None of its documents is refused for what it holds."""
    search_server.ask("PUT", f"/{group}-restored", {"aliases": {f"{group}_shop_orders-000001-write": {}}})
    with pytest.raises(TerminalError, match="more than one index has this alias"):
        write(sink, [[message(2, insert(ORDERS, b"2", b"b", b"x"))]])


def test_no_new_index_is_made_of_one_whose_last_documents_cannot_be_found(
    open_sink: OpenSink, proxy: HttpProxy, search_server: SearchServer, group: str
) -> None:
    sink = open_sink(proxy.url)
    apply(sink, [[message(1, insert(ROWS, *row(1, b"a")))]])
    batch = [[message(2, altered(ITEMS, RENAMED))]]
    proxy.before = answering("_refresh", "POST", Refusal(200, body=b'{"_shards":{"total":2,"successful":1,"failed":1}}'))
    with pytest.raises(TransientError, match="last written documents are not searchable everywhere"):
        written(sink, batch)
    proxy.before = lambda exchange: None
    written(sink, batch)
    assert search_server.documents(f"{group}_public_items") == {"1": (1000, titled(1, "a"))}


SNAPSHOT = orjson.dumps({"error": {"type": "snapshot_in_progress_exception", "reason": "…"}, "status": 400})


def test_an_index_of_which_a_snapshot_is_taken_goes_later(
    sink: SearchSink, proxy: HttpProxy, search_server: SearchServer, group: str
) -> None:
    """No server removes one meanwhile, and a nightly snapshot stops no worker."""
    proxy.before = answering("", "DELETE", Refusal(400, body=SNAPSHOT))
    batch = [[message(2, truncate(ORDERS), insert(ORDERS, b"2", b"b", b"x"))]]
    with pytest.raises(WriteAgain):
        apply(sink, batch)
    apply(sink, batch)
    assert list(search_server.documents(f"{group}_shop_orders")) == ["2"]
    sink._generations.sweep()
    assert generations(search_server, group) == [1, 2]
    proxy.before = lambda exchange: None
    sink._generations.sweep()
    assert generations(search_server, group) == [2]


def generations(server: SearchServer, group: str) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in server.indices() if name.startswith(f"{group}_shop_orders-")]


def test_an_index_that_must_not_be_removed_for_another_reason_stops_the_worker(sink: SearchSink, proxy: HttpProxy) -> None:
    proxy.before = answering("", "DELETE", Refusal(400, body=b'{"error":{"type":"illegal_argument_exception"}}'))
    with pytest.raises(TerminalError, match="illegal_argument_exception"):
        apply(sink, [[message(2, truncate(ORDERS))]])


@pytest.mark.timeout(30)
def test_a_newer_index_that_is_closed_is_waited_for(open_sink: OpenSink, search_server: SearchServer, group: str) -> None:
    sink, newer = open_sink(search_server.url), f"{group}_shop_orders-000002"
    apply(sink, INSERTED)
    emptied = [[message(2, truncate(ORDERS))]]
    search_server.ask("PUT", f"/{newer}")
    search_server.ask("POST", f"/{newer}/_close")
    with pytest.raises(TransientError, match=f"index '{newer}' is closed: open it again, or remove it"):
        apply(sink, emptied)
    assert search_server.documents(f"{group}_shop_orders") == BEFORE
    search_server.ask("POST", f"/{newer}/_open")
    with pytest.raises(WriteAgain):
        apply(sink, emptied)
    apply(sink, emptied)
    assert search_server.documents(f"{group}_shop_orders") == {}


def test_an_index_that_can_never_be_made_stops_the_worker(open_sink: OpenSink, proxy: HttpProxy) -> None:
    sink, refusal = open_sink(proxy.url), b'{"error":{"type":"validation_exception","reason":"this can never be"}}'
    proxy.before = answering("-000001", "PUT", Refusal(400, body=refusal))
    with pytest.raises(TerminalError, match=r"does not take the mapping of table 'shop.orders' .validation_exception"):
        apply(sink, INSERTED)


@on_real_servers
def test_a_server_that_has_its_most_shards_is_waited_for(open_sink: OpenSink, search_server: SearchServer, group: str) -> None:
    """The fake server takes any number."""
    sink = open_sink(search_server.url)
    limit = "cluster.max_shards_per_node"
    search_server.ask("PUT", "/_cluster/settings", {"persistent": {limit: 1}})
    try:
        with pytest.raises(TransientError, match=f"no room for another index .*{limit}") as raised:
            apply(sink, INSERTED)
        assert raised.value.cause is Cause.TARGET
    finally:
        search_server.ask("PUT", "/_cluster/settings", {"persistent": {limit: None}})
    apply(sink, INSERTED)
    assert search_server.documents(f"{group}_shop_orders") == BEFORE


@on_real_servers
def test_an_update_of_a_closed_index_waits_with_what_it_keeps(
    open_sink: OpenSink, search_server: SearchServer, group: str
) -> None:
    """The fake server gives documents of one."""
    sink, index = open_sink(search_server.url), f"{group}_shop_orders-000001"
    apply(sink, INSERTED)
    search_server.ask("POST", f"/{index}/_close")
    with pytest.raises(TransientError, match=f"index '{index}'.*open it again"):
        apply(sink, UPDATED)
    search_server.ask("POST", f"/{index}/_open")
    apply(sink, UPDATED)
    assert search_server.documents(f"{group}_shop_orders") == AFTER
