"""Definitions of the source: what they make of the documents that are there, and of rows around them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.definitions.wording import in_words
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.definition import (
    EnumLabel,
    TableDefined,
    TableDefinition,
    TableGone,
    TableRewritten,
    TypeDefined,
)
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import UNCHANGED, Column, Table
from pgsluice.testing.batch import Batch, apply, apply_copied, write
from pgsluice.testing.changes_builder import copied, delete, insert, message, truncate, update
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.sinks.search.definitions.index_alteration import Altering
from pgsluice.worker.sinks.search.mapping import TableMapping
from pgsluice.worker.sinks.search.sink import SearchSink
from pgsluice.worker.sinks.sink import Applied
from tests.servers import NatsServer
from tests.servers.http_proxy import Exchange, HttpProxy, Refusal
from tests.servers.opensearch import SearchServer, SearchServerError
from tests.state_bucket import ensure_bucket
from tests.worker.definitions.definitions_of import ID, NOTE, column, with_columns
from tests.worker.sinks.search.indexed_table import IndexedTable
from tests.worker.sinks.search.sinks import DIALECT, NO_OVERRIDES
from tests.worker.sinks.search.test_killed import Step, die_often

N = column(3, "n", type_oid=23, type_name="integer")
BODY = column(4, "body")
ITEMS = with_columns(ID, NOTE, N, BODY, name="items")
TITLE = replace(NOTE, name="title")
RENAMED = with_columns(ID, TITLE, N, BODY, name="items")
SNAPSHOT = "00000000000003E8-a"
"""At 1000. The transaction in message n of the stream commits at 1000 n."""


def rows_of(definition: TableDefinition) -> Table:
    columns = tuple(
        Column(c.name, c.type_oid, c.type_name, c.typmod, c.not_null, c.primary_key_position, c.number == 1, "", "", c.number)
        for c in definition.columns
    )
    return Table(definition.oid, definition.schema, definition.name, definition.replica_identity, columns)


def altered(was: TableDefinition, now: TableDefinition) -> PublishedDefinition:
    return PublishedDefinition(TableDefined("ALTER TABLE", now), was)


ROWS, LATER = rows_of(ITEMS), rows_of(RENAMED)


@pytest.fixture
def place(search_server: SearchServer, nats_server: NatsServer, group: str) -> Iterator[IndexedTable]:
    ensure_bucket(nats_server.settings(), group)
    place = IndexedTable(nats_server.settings(), group, search_server, ROWS, {SNAPSHOT: 1000})
    yield place
    for sink in place.sinks:
        sink.close()


@pytest.fixture
def sink(place: IndexedTable) -> SearchSink:
    """Items 1 and 2 are copied; item 2 was changed, item 3 is new."""
    sink = place.sink()
    apply_copied(sink, [[copied(1, ROWS, *(row(number, b"a") for number in (1, 2)), snapshot=SNAPSHOT)]])
    place.note(Phase.FINISHED_COPY, SNAPSHOT, 1)
    sink.finish_copy()
    written(sink, [[message(2, update(ROWS, *row(2, b"b"))), message(3, insert(ROWS, *row(3, b"c")))]])
    return sink


def row(number: int, note: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    return b"%d" % number, note, b"%d" % (number * 10), b"body %d" % number


def document(number: int, note: str, **changed: Any) -> dict[str, Any]:
    return {"id": number, "note": note, "n": number * 10, "body": f"body {number}"} | changed


def written(sink: SearchSink, batch: Batch) -> Applied:
    """As the worker does it."""
    while True:
        try:
            return apply(sink, batch)
        except WriteAgain:
            pass


BEFORE = {"1": (999, document(1, "a")), "2": (2000, document(2, "b")), "3": (3000, document(3, "c"))}


def titled(number: int, note: str) -> dict[str, Any]:
    return {"id": number, "title": note, "n": number * 10, "body": f"body {number}"}


def test_a_field_is_renamed_in_documents_that_are_there_and_in_those_of_the_same_transaction(
    place: IndexedTable, sink: SearchSink
) -> None:
    """Large values that did not change are completed from documents on both sides of the definition."""
    early = update(ROWS, b"2", b"early", b"20", UNCHANGED), insert(ROWS, *row(4, b"early")), delete(ROWS, b"3", None, None, None)
    late = update(LATER, b"4", UNCHANGED, b"40", UNCHANGED), insert(LATER, *row(5, b"late"))
    written(sink, [[message(4, *early, altered(ITEMS, RENAMED), *late)]])
    assert place.documents() == {
        "1": (999, titled(1, "a")),
        "2": (4000, titled(2, "early")),
        "4": (4000, titled(4, "early")),
        "5": (4000, titled(5, "late")),
    }
    index = place.read()[0]
    assert place.read() == [f"{place.alias}-000002"]
    assert "note" not in place.server.ask("GET", f"/{index}/_mapping")[index]["mappings"]["properties"]
    written(sink, [[message(5, update(LATER, *row(1, b"later")))]])
    assert place.documents()["1"] == (5000, titled(1, "later"))
    assert place.generations() == [1, 2], "the earlier one is kept for a while"


def test_names_that_change_places_within_a_transaction(place: IndexedTable, sink: SearchSink) -> None:
    """Rows before and after it look the same."""
    between = with_columns(ID, replace(NOTE, name="x"), N, BODY, name="items")
    half = with_columns(ID, replace(NOTE, name="x"), N, replace(BODY, name="note"), name="items")
    swapped = with_columns(ID, replace(NOTE, name="body"), N, replace(BODY, name="note"), name="items")
    steps = altered(ITEMS, between), altered(between, half), altered(half, swapped)
    written(
        sink, [[message(4, insert(ROWS, b"4", b"was note", None, b"was body"), *steps, insert(rows_of(swapped), *row(5, b"x")))]]
    )
    found = place.documents()
    assert found["1"] == (999, {"id": 1, "note": "body 1", "n": 10, "body": "a"})
    assert found["4"] == (4000, {"id": 4, "note": "was body", "n": None, "body": "was note"})
    assert found["5"] == (4000, {"id": 5, "note": "body 5", "n": 50, "body": "x"})


def test_a_column_that_is_dropped_is_gone_from_documents(place: IndexedTable, sink: SearchSink) -> None:
    """One of its name that is made later is another."""
    left = with_columns(ID, N, BODY, name="items")
    again = with_columns(ID, N, BODY, column(5, "note", type_oid=23, type_name="integer"), name="items")
    written(sink, [[message(4, altered(ITEMS, left), altered(left, again), insert(rows_of(again), b"4", b"0", b"x", b"7"))]])
    assert place.documents() == {
        "1": (999, {"id": 1, "n": 10, "body": "body 1"}),
        "2": (2000, {"id": 2, "n": 20, "body": "body 2"}),
        "3": (3000, {"id": 3, "n": 30, "body": "body 3"}),
        "4": (4000, {"id": 4, "n": 0, "body": "x", "note": 7}),
    }


def test_a_new_column_has_its_default_in_documents_that_are_there(place: IndexedTable, sink: SearchSink) -> None:
    added = with_columns(*ITEMS.columns, column(5, "stars", type_oid=23, type_name="integer", missing="5"), name="items")
    written(sink, [[message(4, insert(ROWS, *row(4, b"x")), altered(ITEMS, added), insert(rows_of(added), *row(5, b"x"), b"1"))]])
    stars = {key: (version, fields["stars"]) for key, (version, fields) in place.documents().items()}
    assert stars == {"1": (999, 5), "2": (2000, 5), "3": (3000, 5), "4": (4000, 5), "5": (4000, 1)}


def test_a_new_column_without_a_default_costs_nothing(place: IndexedTable, sink: SearchSink) -> None:
    added = with_columns(*ITEMS.columns, column(5, "stars", type_oid=23, type_name="integer"), name="items")
    written(sink, [[message(4, altered(ITEMS, added), insert(rows_of(added), *row(5, b"x"), b"1"))]])
    assert place.documents() == BEFORE | {"5": (4000, document(5, "x", stars=1))}
    assert place.generations() == [1]


def test_a_table_that_is_renamed_takes_its_documents_along(place: IndexedTable, sink: SearchSink) -> None:
    """Two tables change names: one has the name in the end that the other had."""
    other = replace(ITEMS, oid=ITEMS.oid + 1, name="others")
    written(sink, [[message(4, insert(rows_of(other), *row(9, b"other")))]])
    between, wanted = replace(ITEMS, name="between"), replace(ITEMS, name="others")
    taken = replace(other, name="items")
    definitions = altered(ITEMS, between), altered(other, taken), altered(between, wanted)
    rows = insert(rows_of(wanted), *row(4, b"late")), insert(rows_of(taken), *row(8, b"late"))
    written(sink, [[message(5, delete(ROWS, b"3", None, None, None), *definitions, *rows)]])
    assert place.documents() == {"9": (4000, document(9, "other")), "8": (5000, document(8, "late"))}
    place.table = rows_of(wanted)
    assert place.documents() == {
        "1": (999, document(1, "a")),
        "2": (2000, document(2, "b")),
        "4": (5000, document(4, "late")),
    }
    written(sink, [[message(6, update(rows_of(wanted), *row(1, b"x")), update(rows_of(taken), *row(9, b"y")))]])
    assert place.documents()["1"] == (6000, document(1, "x"))


Type = dict[str, Any]

NUMBER: Type = {"type_oid": 23, "type_name": "integer"}
BIG: Type = {"type_oid": 20, "type_name": "bigint"}
TEXT: Type = {"type_oid": 25, "type_name": "text"}
PRICE: Type = {"type_oid": 1700, "type_name": "numeric(10,2)", "typmod": (10 << 16 | 2) + 4}
FINER: Type = {"type_oid": 1700, "type_name": "numeric(12,3)", "typmod": (12 << 16 | 3) + 4}
HUGE: Type = {"type_oid": 1700, "type_name": "numeric", "typmod": -1}
DATE: Type = {"type_oid": 1082, "type_name": "date"}
MOMENT: Type = {"type_oid": 1184, "type_name": "timestamp with time zone"}
LOCAL: Type = {"type_oid": 1114, "type_name": "timestamp without time zone"}
SHORT: Type = {"type_oid": 1043, "type_name": "character varying(5)", "typmod": 9}
NUMBERS: Type = {"type_oid": 1007, "type_name": "integer[]"}
TEXTS: Type = {"type_oid": 1009, "type_name": "text[]"}
FLAG: Type = {"type_oid": 16, "type_name": "boolean"}
DOUBLE: Type = {"type_oid": 701, "type_name": "double precision"}


TYPES: list[tuple[Type, Type, bytes, bytes, bool]] = [
    (NUMBER, BIG, b"7", b"7", False),
    (NUMBER, TEXT, b"7", b"7", True),
    (NUMBER, PRICE, b"7", b"7.00", True),
    (NUMBER, HUGE, b"7", b"7", True),
    (PRICE, HUGE, b"1.50", b"1.50", True),
    (PRICE, FINER, b"-1.50", b"-1.500", True),
    (FINER, PRICE, b"1.005", b"1.01", True),
    (PRICE, TEXT, b"1.50", b"1.50", True),
    (HUGE, TEXT, b"1234567890123456789012.50", b"1234567890123456789012.50", True),
    (SHORT, TEXT, b"abc", b"abc", False),
    (TEXT, SHORT, b"abcdefg", b"abcde", True),
    (LOCAL, MOMENT, b"2026-01-31 12:00:00", b"2026-01-31 12:00:00+00", False),
    (NUMBERS, TEXTS, b"{1,NULL,3}", b"{1,NULL,3}", True),
    (FLAG, TEXT, b"t", b"true", True),
    (NUMBER, DOUBLE, b"7", b"7", True),
]
"""A type, a later one, a value, what PostgreSQL's cast makes of it, and whether documents or their fields become others."""


def test_values_of_another_type_are_what_a_row_of_it_has(place: IndexedTable) -> None:
    def columns(types: Sequence[Type]) -> TableDefinition:
        return with_columns(ID, *(column(i + 2, f"v{i}", **each) for i, each in enumerate(types)), name="items")

    before, after = columns([was for was, *_ in TYPES]), columns([now for _, now, *_ in TYPES])
    values, cast = [text for _, _, text, _, _ in TYPES], [text for _, _, _, text, _ in TYPES]
    sink = place.sink()
    nulls = [None] * len(TYPES)
    written(sink, [[message(1, insert(rows_of(before), b"1", *values), insert(rows_of(before), b"2", *nulls))]])
    early = insert(rows_of(before), b"3", *values)
    written(sink, [[message(2, early, altered(before, after), insert(rows_of(after), b"4", *cast))]])
    found = {key: (version, list(fields.values())[1:]) for key, (version, fields) in place.documents().items()}
    assert found["1"] == (1000, found["4"][1])
    assert repr(found["1"][1]) == repr(found["3"][1]) == repr(found["4"][1])
    assert found["2"] == (1000, nulls)


@pytest.mark.parametrize(("was", "now", "text", "cast", "is_another"), TYPES, ids=lambda each: "")
def test_an_index_stays_where_another_type_makes_no_difference(
    was: dict[str, Any], now: dict[str, Any], text: bytes, cast: bytes, is_another: bool
) -> None:
    definition = altered(with_columns(ID, column(2, "v", **was)), with_columns(ID, column(2, "v", **now)))
    tables = [rows_of(each) for each in (definition.previous, definition.event.table)]  # type: ignore[arg-type, union-attr]
    mappings = [TableMapping.of(each, NO_OVERRIDES, DIALECT) for each in tables]
    fields = [dict(enumerate(each.fields, 1)) for each in mappings]
    step = Altering(definition, Position(LSN(1), 1), fields[0], fields[1], is_rewritten=False).step(Policies())
    assert step.alters(mappings[0].properties) is is_another


REWRITE = PublishedDefinition(TableRewritten("ALTER TABLE", ITEMS.oid, "public", "items", 4), None)
KEYED = with_columns(replace(ID, primary_key_position=None), replace(NOTE, primary_key_position=1), N, BODY, name="items")
MOOD = TypeDefined("ALTER TYPE", 7, "public", "mood", "e", "", (EnumLabel(8, "sad"),))


def retyped(**changed: Any) -> TableDefinition:
    return with_columns(ID, replace(NOTE, **changed), N, BODY, name="items")


REFUSED = [
    ([altered(ITEMS, retyped(**DATE))], "do not contain the values of column 'note' as date"),
    ([altered(retyped(**DATE), retyped(**MOMENT))], "column 'note'"),
    ([REWRITE, altered(retyped(**LOCAL), retyped(**MOMENT))], "column 'note'"),
    ([altered(ITEMS, replace(KEYED, identity_columns=(2,)))], "identified by other columns"),
    ([altered(ITEMS, with_columns(replace(ID, **FLAG), NOTE, N, BODY, name="items"))], "column 'id'"),
    ([PublishedDefinition(replace(MOOD, labels=(EnumLabel(8, "blue"),)), MOOD)], "documents have its earlier name"),
]


def test_what_documents_do_not_tell_stops_the_worker_before_anything_is_written(place: IndexedTable, sink: SearchSink) -> None:
    for definitions, named in REFUSED:
        for each in (sink, place.sink()):
            with pytest.raises(TerminalError, match=named) as caught:
                written(each, [[message(4, insert(ROWS, *row(4, b"x")), *definitions)]])
            assert "pgsluice search reindex" in caught.value.remedy
            assert "pgsluice ddl accept 0/FA0:" in caught.value.remedy
    assert place.documents() == BEFORE
    assert place.generations() == [1]


def test_labels_that_are_added_are_nothing_to_documents(place: IndexedTable, sink: SearchSink) -> None:
    grown = PublishedDefinition(replace(MOOD, labels=(EnumLabel(8, "sad"), EnumLabel(9, "blue"))), MOOD)
    written(sink, [[message(4, grown, insert(ROWS, *row(4, b"x")))]])
    assert place.documents() == BEFORE | {"4": (4000, document(4, "x"))}


def test_what_the_policy_leaves_as_it_is_stays(place: IndexedTable) -> None:
    sink = place.sink(ddl_policy={"drop-column": "keep", "rename-column": "ignore"})
    written(sink, [[message(1, insert(ROWS, *row(1, b"a")))]])
    left = with_columns(ID, replace(N, name="number"), BODY, name="items")
    written(sink, [[message(2, altered(ITEMS, left), insert(rows_of(left), b"2", b"20", b"x"))]])
    assert place.documents() == {"1": (1000, document(1, "a")), "2": (2000, {"id": 2, "number": 20, "body": "x"})}
    gone = PublishedDefinition(TableGone("DROP TABLE", ITEMS.oid, "public", "items"), ITEMS)
    with pytest.raises(TerminalError, match="ddl-policy has drop for drop-table"):
        written(place.sink(ddl_policy={"drop-table": "drop"}), [[message(3, gone)]])


def test_a_table_that_is_altered_and_emptied_in_one_transaction(place: IndexedTable, sink: SearchSink) -> None:
    batch = [[message(4, insert(ROWS, *row(4, b"x")), altered(ITEMS, RENAMED), truncate(LATER), insert(LATER, *row(5, b"y")))]]
    written(sink, batch)
    assert place.documents() == {"5": (4000, titled(5, "y"))}
    before = with_columns(*RENAMED.columns, name="items")
    again = with_columns(ID, NOTE, N, BODY, name="items")
    batch = [[message(5, insert(LATER, *row(6, b"x")), truncate(LATER), insert(LATER, *row(7, b"z")), altered(before, again))]]
    written(sink, batch)
    assert place.documents() == {"7": (5000, document(7, "z"))}


def test_the_same_transaction_comes_again_to_another_process(place: IndexedTable, sink: SearchSink) -> None:
    """The first one died before it stored where it was."""
    batch = [[message(4, insert(ROWS, *row(4, b"x")), altered(ITEMS, RENAMED), insert(LATER, *row(5, b"y")))]]
    with pytest.raises(WriteAgain):
        apply(sink, batch)
    assert place.documents() == {key: (version, titled(int(key), fields["note"])) for key, (version, fields) in BEFORE.items()}
    written(place.sink(), batch)
    after = place.documents()
    assert (after["4"], after["5"]) == ((4000, titled(4, "x")), (4000, titled(5, "y")))
    assert place.generations() == [1, 2]


def test_a_dead_letter_from_before_does_not_bring_the_earlier_field_back(place: IndexedTable, sink: SearchSink) -> None:
    written(sink, [[message(4, altered(ITEMS, RENAMED))]])
    with pytest.raises(TerminalError, match="has no field 'note'"):
        apply(place.sink(is_replay=True), [[message(3, insert(ROWS, *row(7, b"old")))]])
    apply(place.sink(is_replay=True), [[message(5, insert(LATER, *row(7, b"new")))]])
    assert place.documents()["7"] == (5000, titled(7, "new"))


def test_other_groups_have_tables_of_the_same_number(place: IndexedTable, sink: SearchSink) -> None:
    """Databases give numbers out alike, and one server has indexes of several groups."""
    name = f"{place.alias}_of_others"
    said = {"pgsluice": {"table": "public.items", "oid": ITEMS.oid, "group": "others"}}
    mappings = {"dynamic": "strict", "_meta": said, "properties": {"note": {"type": "text"}}}
    place.server.ask("PUT", f"/{name}-000001", {"mappings": mappings, "aliases": {name: {}}})
    written(sink, [[message(4, altered(ITEMS, RENAMED))]])
    assert sorted(place.server.ask("GET", f"/_alias/{name}")) == [f"{name}-000001"]


def test_the_history_of_definitions_is_an_index_of_its_own(place: IndexedTable) -> None:
    """Each is there once, though its batch comes again."""
    name = f"{place.group}-schema"
    ignored = altered(RENAMED, with_columns(ID, replace(TITLE, name="heading"), N, BODY, name="items"))
    batch = [[message(1, insert(ROWS, *row(1, b"a")), altered(ITEMS, RENAMED), ignored)]]
    for _ in range(2):
        sink = place.sink(schema_index=name)
        with pytest.raises(WriteAgain):
            apply(sink, batch)
        write(sink, batch)
    found = place.server.documents(name)
    assert sorted(found) == [f"{place.group} 0/3E8:2", f"{place.group} 0/3E8:3"]
    version, said = found[f"{place.group} 0/3E8:2"]
    assert (version, said["kind"], said["name"], said["tag"]) == (1000, "table", "items", "ALTER TABLE")
    assert said["changes"] == list(in_words(altered(ITEMS, RENAMED)))
    assert PublishedDefinition.decode(json.dumps(said["definition"]).encode()) == altered(ITEMS, RENAMED)
    with pytest.raises(SearchServerError, match="strict_dynamic_mapping_exception"):
        place.server.ask("PUT", f"/{name}/_doc/1", {"other": 1})


def test_a_worker_dies_at_each_of_its_requests_while_it_makes_the_new_index(
    search_server: SearchServer, nats_server: NatsServer, group: str
) -> None:
    ensure_bucket(nats_server.settings(), group)
    place = IndexedTable(nats_server.settings(), group, search_server, ROWS, {SNAPSHOT: 1000})
    moved = replace(RENAMED, name="things")

    def batch(sequence: int, *changes: Any) -> Step:
        return Step(
            lambda sink: apply(sink, [[message(sequence, *changes)]]),
            lambda sink: sink.open().sequence >= sequence,
        )

    some = insert(ROWS, *row(4, b"x")), update(ROWS, b"1", b"y", b"10", UNCHANGED)
    steps = [
        batch(1, *(insert(ROWS, *row(number, b"a")) for number in range(4))),
        batch(2, *some, altered(ITEMS, RENAMED), altered(RENAMED, moved), insert(rows_of(moved), *row(5, b"z"))),
        batch(3, delete(rows_of(moved), b"2", None, None, None)),
    ]
    with HttpProxy(search_server.port) as proxy:
        deaths = [die_often(step, place, proxy) for step in steps]
    assert deaths[1] > 30
    place.table = rows_of(moved)
    assert place.documents() == {
        "0": (1000, titled(0, "a")),
        "1": (2000, titled(1, "y")),
        "3": (1000, titled(3, "a")),
        "4": (2000, titled(4, "x")),
        "5": (2000, titled(5, "z")),
    }
    assert place.generations() == [1]


def test_a_right_that_no_group_of_rights_of_opensearch_holds_is_not_needed(place: IndexedTable, sink: SearchSink) -> None:
    """To end what was read: the server does so by itself."""

    def refuse(exchange: Exchange) -> Refusal | None:
        is_end = exchange.target == "/_search/scroll" and exchange.method == "DELETE"
        return Refusal(403, body=b'{"error":{"type":"security_exception"},"status":403}') if is_end else None

    with HttpProxy(place.server.port) as proxy:
        proxy.before = refuse
        after = place.sink(url=proxy.url)
        written(after, [[message(4, altered(ITEMS, RENAMED))]])
    assert place.documents()["1"] == (999, titled(1, "a"))
