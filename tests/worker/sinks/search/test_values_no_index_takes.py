"""Values that PostgreSQL has and an index does not take: their documents are there, with all of them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pgsluice.shared.wire.table import UNCHANGED, Column, ReplicaIdentity, Table
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import insert, message, table, update
from pgsluice.worker.sinks.search.document import indexable_part, with_whole_values
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.server_connection import ServerConnection
from pgsluice.worker.sinks.search.server_kind import SUBSTITUTES, ServerKind, stands_for, unknown_type, without_type
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers.opensearch import SearchServer
from tests.worker.sinks.search.sinks import NO_OVERRIDES, search_settings

HIDING = {"number": "9.5.3"}


def stored(server: SearchServer, group: str, name: str) -> dict[str, dict[str, Any]]:
    found = server.documents(f"{group}_shop_{name}")
    return {key: with_whole_values(source) for key, (_, source) in found.items()}


def typed(name: str, type_name: str, type_oid: int = 99_999, typmod: int = -1) -> Table:
    key = Column("id", 20, "bigint", -1, True, 1, True, "", "")
    columns = (key, Column("value", type_oid, type_name, typmod, False, None, False, "", ""))
    return Table(
        4711, "shop", name, ReplicaIdentity.DEFAULT, (*columns, Column("note", 25, "text", -1, False, None, False, "", ""))
    )


@pytest.mark.parametrize("levels", [21, 100, 190])
def test_json_of_any_depth_that_is_sent(sink: SearchSink, search_server: SearchServer, group: str, levels: int) -> None:
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    apply(sink, [[message(1, insert(table("shop.papers", "id bigint", "value jsonb"), b"1", deep))]])
    assert search_server.ask("GET", f"/{group}_shop_papers/_doc/1?_source=false")["found"]


def test_an_index_that_was_made_with_fewer_levels_takes_deep_json_too(
    sink: SearchSink, search_server: SearchServer, group: str
) -> None:
    papers = table("shop.papers", "id bigint", "value jsonb", "at date")
    catalog = IndexCatalog(
        ServerConnection(search_settings(search_server.url, group)),
        search_settings(search_server.url, group),
        NO_OVERRIDES,
        group,
    )
    before = {
        name: {key: each for key, each in field.items() if key not in ("depth_limit", "ignore_malformed")}
        for name, field in catalog.mapping(papers).properties.items()
    }
    catalog.create(papers, catalog.newest(catalog.alias(papers)), properties=before)
    apply(sink, [[message(1, insert(papers, b"1", b'{"a":' * 50 + b"1" + b"}" * 50, b"294000-01-31"))]])
    assert search_server.ask("GET", f"/{group}_shop_papers/_doc/1?_source=false")["found"]


DATES = [b"294000-12-31 23:59:59.5+00", b"0044-03-15 00:00:00+00 BC", b"2026-01-31 09:15:00+00"]


def test_years_of_any_number_of_digits_are_stored_and_others_are_searched(
    sink: SearchSink, search_server: SearchServer, group: str
) -> None:
    events = table("shop.events", "id bigint", "at timestamptz", "days date[]")
    rows = [insert(events, b"%d" % i, each, b"{5874897-12-31,2026-01-31}") for i, each in enumerate(DATES)]
    apply(sink, [[message(1, *rows)]])
    found = stored(search_server, group, "events")
    assert [each["at"] for each in found.values()] == [
        "+294000-12-31T23:59:59.5Z",
        "-0043-03-15T00:00:00Z",
        "2026-01-31T09:15:00Z",
    ]
    assert found["0"]["days"] == ["+5874897-12-31", "2026-01-31"]
    query = {"query": {"range": {"at": {"gte": "2026-01-01", "lt": "2027-01-01"}}}}
    assert search_server.ask("POST", f"/{group}_shop_events/_count", query)["count"] == 1


def test_a_vector_of_zeros_stays_in_its_document(sink: SearchSink, search_server: SearchServer, group: str) -> None:
    """It has no direction, so no index takes it where nearness is an angle."""
    points = typed("points", "vector(3)")
    rows = insert(points, b"1", b"[0,0,0]", b"n"), insert(points, b"2", b"[0,0,1]", b"n")
    apply(sink, [[message(1, *rows)]])
    apply(sink, [[message(2, update(points, b"1", UNCHANGED, b"m"), update(points, b"2", UNCHANGED, b"m"))]])
    found = stored(search_server, group, "points")
    assert found == {"1": {"id": 1, "value": [0, 0, 0], "note": "m"}, "2": {"id": 2, "value": [0, 0, 1], "note": "m"}}


@pytest.mark.parametrize("dimensions", [4097, 16_000])
def test_a_vector_of_more_dimensions_than_an_index_takes(
    sink: SearchSink, search_server: SearchServer, group: str, dimensions: int
) -> None:
    large = b"[" + b",".join([b"1"] * dimensions) + b"]"
    apply(sink, [[message(1, insert(typed("wide", f"vector({dimensions})"), b"1", large, b"n"))]])
    assert stored(search_server, group, "wide")["1"]["value"] == [1] * dimensions


def test_numbers_of_a_fixed_scale_keep_every_digit(sink: SearchSink, search_server: SearchServer, group: str) -> None:
    """Also where a server has no fields for them, in an index that is new and in one that gets the column later."""
    early, later = table("shop.prices", "id bigint"), typed("prices", "numeric(10,2)", 1700, (10 << 16 | 2) + 4)
    apply(sink, [[message(1, insert(early, b"1"))]])
    apply(sink, [[message(2, insert(later, b"2", b"12.50", b"n"))]])
    apply(sink, [[message(3, insert(typed("others", "numeric(10,2)", 1700, (10 << 16 | 2) + 4), b"1", b"-0.10", b"n"))]])
    assert stored(search_server, group, "prices")["2"]["value"] == 12.5
    assert stored(search_server, group, "others")["1"]["value"] == -0.1
    for name, low, high in (("prices", 12.4, 12.6), ("others", -0.2, 0)):
        query = {"query": {"range": {"value": {"gt": low, "lt": high}}}}
        assert search_server.ask("POST", f"/{group}_shop_{name}/_count", query)["count"] == 1


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("Failed to parse mapping: The mapper type [scaled_float] declared on field [s] does not exist.", "scaled_float"),
        ("No handler for type [knn_vector] declared on field [v]", "knn_vector"),
        ("The number of dimensions should be in the range [1, 4096] but was [5000]", ""),
    ],
)
def test_a_type_that_a_server_does_not_have_is_told_by_its_reason(reason: str, name: str) -> None:
    assert unknown_type(reason) == name


def test_a_field_may_be_what_took_the_place_of_its_type() -> None:
    for wanted, there in SUBSTITUTES.items():
        assert stands_for(there["type"], wanted)
        assert without_type({"a": {"type": wanted}, "b": {"type": "long"}}, wanted) == {"a": there, "b": {"type": "long"}}
    assert stands_for("keyword", "keyword")
    assert not stands_for("long", "keyword")


@pytest.mark.parametrize(
    ("version", "hides"),
    [(HIDING, True), ({"number": "10.0.0"}, True), ({"number": "9.1.4"}, False), ({"number": "7.17.29"}, False), ({}, False)],
)
def test_from_which_version_on_vectors_have_to_be_asked_for(version: dict[str, str], hides: bool) -> None:
    assert ServerKind.of(version).hides_vectors is hides
    assert not ServerKind.of(version | {"distribution": "opensearch"}).hides_vectors


@pytest.mark.parametrize("document", [b'{"a":[0,1]}', b'{"a":[]}', b'{"a":"[0,0]"}', b'{"a":[false,false]}', b'{"a":{"b":[0]}}'])
def test_what_is_no_vector_of_zeros_stays_as_it_is(document: bytes) -> None:
    assert indexable_part(document + b"\n") is None


def test_a_vector_of_zeros_is_set_aside_with_every_digit() -> None:
    document = indexable_part(b'{"id":1,"a":[0,-0,0.00]}\n')
    assert document is not None
    assert orjson.loads(document) == {"id": 1, "a": None, "%whole": {"a": [0, 0, 0]}}
    assert b"[0,-0,0.00]" in document
