"""A json value with a leaf that no search server can index: the document is there, with all of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import insert, message, table, update
from pgsluice.worker.sinks.search.document import indexable_part, with_whole_values
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers.opensearch import SearchServer

EVENTS = table("shop.events", "id bigint", "payload jsonb", "body text")
LARGE = {"kind": "paid", "note": "x" * 40_000, "lines": ["a", "é" * 20_000], "n": {"k" * 40_000: 1}}
SMALL = {"kind": "sent"}


def stored(server: SearchServer, group: str) -> dict[str, Any]:
    _, source = server.documents(f"{group}_shop_events")["1"]
    return dict(with_whole_values(source))


def found(server: SearchServer, group: str, kind: str) -> int:
    query = {"query": {"term": {"payload.kind": kind}}}
    return int(server.ask("POST", f"/{group}_shop_events/_count", query)["count"])


def test_the_leaf_stays_in_the_document_and_the_rest_of_the_value_can_be_searched(
    sink: SearchSink, search_server: SearchServer, group: str
) -> None:
    others = [insert(EVENTS, b"%d" % i, orjson.dumps(SMALL), b"b") for i in range(2, 5)]
    apply(sink, [[message(1, insert(EVENTS, b"1", orjson.dumps(LARGE), b"b"), *others)]])
    assert stored(search_server, group) == {"id": 1, "payload": LARGE, "body": "b"}
    assert found(search_server, group, "paid") == 1
    assert found(search_server, group, "sent") == 3


def test_an_update_that_leaves_the_value_as_it_was_keeps_all_of_it_and_another_value_replaces_it(
    sink: SearchSink, search_server: SearchServer, group: str
) -> None:
    apply(sink, [[message(1, insert(EVENTS, b"1", orjson.dumps(LARGE), b"b"))]])
    apply(sink, [[message(2, update(EVENTS, b"1", UNCHANGED, b"c"))]])
    assert stored(search_server, group) == {"id": 1, "payload": LARGE, "body": "c"}
    apply(sink, [[message(3, update(EVENTS, b"1", orjson.dumps(SMALL), b"d"))]])
    _, source = search_server.documents(f"{group}_shop_events")["1"]
    assert source == {"id": 1, "payload": SMALL, "body": "d"}


@pytest.mark.parametrize("document", [b"{}", orjson.dumps({"a": SMALL}), orjson.dumps({"a": "x" * 40_000})])
def test_a_document_without_such_a_leaf_in_an_object_stays_as_it_is(document: bytes) -> None:
    assert indexable_part(document + b"\n") is None
