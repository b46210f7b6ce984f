"""What a server gives back of its documents is all that it was sent, or else nothing is written over it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.batch import Batch, apply
from pgsluice.testing.changes_builder import insert, message, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.search.definitions.whole_documents import MOST_COMPARED, check_whole, compared_fields
from pgsluice.worker.sinks.search.options import SINK
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.search_servers import on_real_servers, on_servers_that_hide_vectors
from tests.servers import NatsServer
from tests.servers.http_proxy import Exchange, HttpProxy, Refusal
from tests.servers.opensearch import SearchServer
from tests.state_bucket import ensure_bucket
from tests.worker.definitions.definitions_of import ID, NOTE, column, with_columns
from tests.worker.sinks.search.indexed_table import IndexedTable
from tests.worker.sinks.search.sinks import search_settings
from tests.worker.sinks.search.test_altered_indexes import altered, rows_of
from tests.worker.sinks.settings import worker_settings

PLACE = column(3, "place", type_oid=99_999, type_name="vector(3)")
POINTS = with_columns(ID, NOTE, PLACE, name="points")
RENAMED = with_columns(ID, replace(NOTE, name="title"), PLACE, name="points")
ROWS, LATER = rows_of(POINTS), rows_of(RENAMED)


@pytest.fixture
def place(search_server: SearchServer, nats_server: NatsServer, group: str) -> Iterator[IndexedTable]:
    ensure_bucket(nats_server.settings(), group)
    place = IndexedTable(nats_server.settings(), group, search_server, ROWS, {})
    yield place
    for sink in place.sinks:
        sink.close()


def written(sink: SearchSink, batch: Batch) -> None:
    """As the worker does it."""
    while True:
        try:
            apply(sink, batch)
            return
        except WriteAgain:
            pass


def point(number: int) -> tuple[bytes, bytes, bytes]:
    return b"%d" % number, b"n", b"[%d,1e-07,-0.1]" % number


def twenty(sink: SearchSink) -> None:
    written(sink, [[message(1, *(insert(ROWS, *point(number)) for number in range(20)))]])


def vectors(place: IndexedTable) -> dict[str, Any]:
    return {key: fields.get("place") for key, (_, fields) in place.documents().items()}


EVERY = {str(number): [number, 1e-07, -0.1] for number in range(20)}


def test_an_index_that_is_made_again_has_every_vector(place: IndexedTable) -> None:
    sink = place.sink()
    twenty(sink)
    assert vectors(place) == EVERY
    written(sink, [[message(2, altered(POINTS, RENAMED), update(LATER, b"7", b"t", b"[7,1e-07,-0.1]"))]])
    assert place.generations() == [1, 2]
    assert vectors(place) == EVERY


def test_an_update_that_leaves_a_vector_out_keeps_it(place: IndexedTable) -> None:
    sink = place.sink()
    twenty(sink)
    written(sink, [[message(2, update(ROWS, b"7", b"t", UNCHANGED))]])
    assert vectors(place) == EVERY


@on_servers_that_hide_vectors
def test_an_index_that_others_made_and_that_hides_vectors_loses_none_of_them(
    place: IndexedTable, search_server: SearchServer
) -> None:
    """As indexes were made before: rows are written to one that is there already."""
    properties = {"id": {"type": "long"}, "note": {"type": "text"}, "place": {"type": "dense_vector", "dims": 3}}
    said = {"pgsluice": {"table": "public.points", "oid": POINTS.oid, "group": place.group}}
    index = f"{place.alias}-000001"
    mappings = {"dynamic": "strict", "_meta": said, "properties": properties}
    search_server.ask("PUT", f"/{index}", {"mappings": mappings, "aliases": {place.alias: {}, f"{index}-write": {}}})
    sink = place.sink()
    twenty(sink)
    written(sink, [[message(2, update(ROWS, b"7", b"t", UNCHANGED))]])
    assert set(vectors(place)) == set(EVERY)
    assert set(vectors(place).values()) == {None}
    written(sink, [[message(3, altered(POINTS, RENAMED))]])
    assert vectors(place) == {key: pytest.approx(value) for key, value in EVERY.items()}


def test_what_a_server_gives_without_a_field_that_it_has_is_not_written_over(
    place: IndexedTable, search_server: SearchServer
) -> None:
    """Whatever the reason: here somebody in between takes it out."""
    sink = place.sink()
    twenty(sink)

    def withheld(exchange: Exchange) -> Refusal | None:
        if exchange.method != "POST" or "/_search" not in exchange.target:
            return None
        body = gzip.decompress(exchange.body) if exchange.body.startswith(b"\x1f\x8b") else exchange.body
        asked = orjson.loads(body)
        if "query" in asked:
            asked["_source"] = {"excludes": ["place"]}
        return Refusal(200, {"Content-Type": "application/json"}, orjson.dumps(search_server.ask("POST", exchange.target, asked)))

    with HttpProxy(search_server.port) as proxy:
        proxy.before = withheld
        through = place.sink(proxy.url)
        with pytest.raises(TerminalError, match="without field 'place', which they have") as raised:
            written(through, [[message(2, altered(POINTS, RENAMED))]])
        through.close()
    assert "pgsluice search reindex public.points" in raised.value.remedy
    assert vectors(place) == EVERY
    assert place.read() == [f"{place.alias}-000001"]


def test_fields_that_have_no_values_of_their_own_are_not_compared() -> None:
    properties: dict[str, Any] = {f"f{number}": {"type": "long"} for number in range(2000)}
    properties |= {"a": {"type": "text", "copy_to": "all"}, "all": {"type": "text"}, "e": {"type": "dense_vector"}}
    properties |= {"%whole": {"type": "object", "enabled": False}, "o": {"properties": {"a": {"type": "long"}}}}
    properties |= {"n": {"type": "keyword", "null_value": "none"}, "c": {"type": "constant_keyword"}}
    compared = compared_fields(properties)
    assert (compared[0], len(compared)) == ("e", MOST_COMPARED)
    assert compared_fields({name: properties[name] for name in ("a", "all", "%whole", "o", "n", "c")}) == ["a"]
    check_whole([{"_source": {"a": 0}, "matched_queries": ["a"]}, {"_source": {}}], "t")


LESS: list[tuple[dict[str, Any], str]] = [
    ({"excludes": ["note"]}, "_source excludes"),
    ({"includes": ["id"]}, "_source includes"),
    ({"enabled": False}, "_source is not kept"),
]


@pytest.fixture
def template(search_server: SearchServer, group: str) -> Iterator[str]:
    """The name of one, for the group's indexes; it is to go."""
    yield group
    search_server.ask("DELETE", f"/_index_template/{group}")


@on_real_servers
@pytest.mark.parametrize(("source", "sentence"), LESS)
def test_an_index_that_a_template_makes_keep_less_is_refused_before_the_first_document(
    search_server: SearchServer, nats_server: NatsServer, template: str, source: dict[str, Any], sentence: str
) -> None:
    ensure_bucket(nats_server.settings(), template)
    body = {"index_patterns": [f"{template}_*"], "priority": 500, "template": {"mappings": {"_source": source}}}
    search_server.ask("PUT", f"/_index_template/{template}", body)
    place = IndexedTable(nats_server.settings(), template, search_server, ROWS, {})
    with pytest.raises(TerminalError, match=sentence) as raised:
        twenty(place.sink())
    assert "index template" in raised.value.remedy
    assert place.generations() == []
    place.sinks[0].close()


def test_an_index_that_keeps_less_is_found_by_a_check_and_refused(search_server: SearchServer, place: IndexedTable) -> None:
    said = {"pgsluice": {"table": "public.points", "oid": POINTS.oid, "group": place.group}}
    mappings = {"_meta": said, "_source": {"excludes": ["note"]}, "properties": {"id": {"type": "long"}}}
    index = f"{place.alias}-000001"
    search_server.ask("PUT", f"/{index}", {"mappings": mappings, "aliases": {place.alias: {}, f"{index}-write": {}}})
    settings = search_settings(search_server.url, place.group)
    found = SINK.look(worker_settings(place.group), settings, Incoming(tables=(ROWS,)))
    assert [each.fact for each in found if "keeps less of its documents" in each.fact]
    with pytest.raises(TerminalError, match="_source excludes"):
        twenty(place.sink())


def test_a_change_whose_value_the_document_does_not_have_is_a_dead_letter(
    place: IndexedTable, search_server: SearchServer
) -> None:
    """And the document stays as it is."""
    sink = place.sink()
    twenty(sink)
    target = f"{place.alias}-000001-write"
    operation = {"index": {"_index": target, "_id": "7", "version": 1000, "version_type": "external_gte"}}
    search_server.ask("POST", "/_bulk", b"".join(orjson.dumps(each) + b"\n" for each in (operation, {"id": 7, "note": "n"})))
    with pytest.raises(RejectedChanges) as raised:
        written(sink, [[message(2, update(ROWS, b"7", b"t", UNCHANGED))]])
    assert "the document does not have it, and the change does not hold the value of 'place'" in raised.value.rejections[0].reason
    assert place.documents()["7"] == (1000, {"id": 7, "note": "n"})
