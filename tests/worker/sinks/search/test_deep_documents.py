"""Documents that are nested deeper than Python and its libraries go: a row of anybody's must not stop a worker."""

from __future__ import annotations

import json

import orjson
import pytest

from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import UNCHANGED, Value
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import insert, message, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.search.document import document_of, is_too_deep, read_fields
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers.opensearch import SearchServer

EVENTS = table("shop.events", "id bigint", "payload jsonb", "body text")


def nested(levels: int, within: str = '"[{\\"", 1.50') -> bytes:
    return (b'{"a":[' * (levels // 2)) + within.encode() + (b"]}" * (levels // 2))


@pytest.mark.parametrize("levels", [50, 250, 300, 1000, 50_000])
def test_a_document_of_any_depth_is_written_as_it_was_read(levels: int) -> None:
    text = b'{"id":7,"payload":%b,"note":"[[","more":[%b,{"b":%b}],"n":1.50}\n' % ((nested(levels),) * 3)
    assert document_of(read_fields(text)).replace(b" ", b"") == text.replace(b" ", b"")


def test_half_a_character_is_written_as_it_was_read() -> None:
    """PostgreSQL takes one in a json document: what cuts texts in two leaves it."""
    text = rb'{"id":7,"payload":{"a":["\ud83d \u00e9","\ud83d\ude00"],"\udc00":1.50,"b":{}},"n":1.50}'
    written = document_of(read_fields(text + b"\n"))
    assert json.loads(written) == json.loads(text)
    assert written.count(b"1.50") == 2


def test_an_update_that_leaves_a_large_value_out_keeps_half_a_character(sink: SearchSink, search_server: SearchServer) -> None:
    half, other = rb'{"a": "\ud83d"}', rb'{"a": "\udc00"}'
    papers = table("shop.papers", "id bigint", "payload json", "body text")
    changes = (insert(papers, b"1", half, b"large"), update(papers, b"1", other, UNCHANGED))
    assert apply(sink, [[message(1, *changes)]]).sequence == 1
    assert apply(sink, [[message(2, update(papers, b"1", half, UNCHANGED))]]).sequence == 2


def test_an_answer_says_what_is_around_its_documents() -> None:
    answer = read_fields(b'{"docs":[{"found":true,"_source":{"payload":%b}},{"found":false}]}' % nested(600))
    assert [each["found"] for each in answer["docs"]] == [True, False]
    assert b'"payload":' + nested(600) in orjson.dumps(answer["docs"][0]["_source"]).replace(b'",1', b'", 1')


@pytest.mark.parametrize("levels", [150, 198])
def test_an_update_that_leaves_a_large_value_out_keeps_a_deep_one(
    sink: SearchSink, search_server: SearchServer, group: str, levels: int
) -> None:
    deep, deeper = nested(levels, "1"), nested(levels, "2")
    apply(sink, [[message(1, insert(EVENTS, b"1", deep, b"large"))]])
    apply(sink, [[message(2, update(EVENTS, b"1", deeper, UNCHANGED))]])
    apply(sink, [[message(3, update(EVENTS, b"1", UNCHANGED, b"other"))]])
    found = search_server.ask("GET", f"/{group}_shop_events/_doc/1?_source=false")
    assert found["_version"] == 3000
    apply(sink, [[message(4, insert(EVENTS, b"2", deep, b"x"), update(EVENTS, b"2", UNCHANGED, b"y"))]])
    assert search_server.ask("GET", f"/{group}_shop_events/_doc/2?_source=false")["found"]


@pytest.mark.parametrize("levels", [200, 800, 20_000])
@pytest.mark.parametrize("body", [b"x", UNCHANGED])
def test_a_document_that_may_end_a_server_is_a_dead_letter_and_never_sent(
    sink: SearchSink, search_server: SearchServer, group: str, levels: int, body: Value
) -> None:
    """OpenSearch gives no answer any more to one of 800 levels; the fake one takes anything."""
    apply(sink, [[message(1, insert(EVENTS, b"1", b"{}", b"large"))]])
    with pytest.raises(RejectedChanges) as raised:
        apply(sink, [[message(2, insert(EVENTS, b"2", b"{}", b"x"), update(EVENTS, b"1", nested(levels, "1"), body))]])
    (rejection,) = raised.value.rejections
    assert (rejection.position, "nested more than 200 levels" in rejection.reason) == (Position(LSN(2000), 2), True)
    documents = search_server.documents(f"{group}_shop_events")
    assert {key: version for key, (version, _) in documents.items()} == {"1": 1000, "2": 2000}


def test_brackets_in_texts_and_side_by_side_do_not_count() -> None:
    assert not is_too_deep(b'{"a":"%b","b":[%b]}\n' % (b"[" * 1000, b",".join([b'{"c":"\\"["}'] * 1000)))
    assert is_too_deep(b'{"a":"\\\\","b":%b}\n' % nested(200, "1"))
