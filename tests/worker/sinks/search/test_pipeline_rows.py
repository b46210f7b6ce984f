"""Rows of a SQL pipeline's runs as documents: the newer of two is kept, and a run that replaces all is never seen half."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.batch import apply_copied, write_copied
from pgsluice.testing.changes_builder import Row, begins_run, ends_run, of_run, table
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers import NatsServer
from tests.servers.http_proxy import Cut, HttpProxy
from tests.servers.opensearch import SearchServer, SearchServerError
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.search.indexed_table import IndexedTable

ITEMS = table("public.items", "id bigint", "note text")
LINES = table("public.lines", "note text", key=(), identity=ReplicaIdentity.NOTHING)


@pytest.fixture
def place(search_server: SearchServer, nats_server: NatsServer, group: str) -> Iterator[IndexedTable]:
    ensure_bucket(nats_server.settings(), group)
    place = IndexedTable(nats_server.settings(), group, search_server, ITEMS, {})
    yield place
    for sink in place.sinks:
        sink.close()


@pytest.fixture
def sink(place: IndexedTable) -> SearchSink:
    return place.sink()


def replacing(run: int, *rows: Row, number: int = 1) -> list[CopiedRows]:
    """All messages of the run, of which there are three; ``number`` is of its first one."""
    mark = RunMark(run, 100 * run, replaces=True)
    return [begins_run(number, ITEMS, mark), of_run(number + 1, ITEMS, mark, *rows), ends_run(number + 2, ITEMS, mark)]


def apply(sink: SearchSink, messages: Sequence[CopiedRows]) -> None:
    for each in messages:
        apply_copied(sink, [[each]])


def test_a_row_of_a_later_run_takes_the_place_of_the_one_before(place: IndexedTable, sink: SearchSink) -> None:
    first, second = RunMark(1, 100), RunMark(2, 200)
    rows = of_run(2, ITEMS, first, (b"1", b"a"), (b"2", b"a"))
    apply(sink, [begins_run(1, ITEMS, first), rows])
    apply(sink, [begins_run(3, ITEMS, second), of_run(4, ITEMS, second, (b"2", b"b"), (b"3", b"b"))])
    newest = {"1": (100, "a"), "2": (200, "b"), "3": (200, "b")}
    assert place.notes() == newest
    write_copied(sink, [[rows]])  # by a task that was given up
    assert place.notes() == newest
    assert place.generations() == [1]


def test_a_row_that_is_deleted_goes_and_does_not_come_back(place: IndexedTable, sink: SearchSink) -> None:
    first, second = RunMark(1, 100, deletes=2), RunMark(2, 200, deletes=2)
    rows = of_run(2, ITEMS, first, (b"1", b"a"), (b"2", b"a"))
    apply(sink, [begins_run(1, ITEMS, first), rows, begins_run(3, ITEMS, second)])
    apply(sink, [replace(of_run(4, ITEMS, second, (b"2", None)), deletes=True)])
    write_copied(sink, [[rows]])  # by a task that was given up
    assert place.notes() == {"1": (100, "a")}


def test_rows_without_a_key_are_added_by_each_run(nats_server: NatsServer, place: IndexedTable, sink: SearchSink) -> None:
    first, second = RunMark(1, 100), RunMark(2, 200)
    for sequence, mark in ((1, first), (3, second), (3, second)):
        apply(place.sink(), [begins_run(sequence, LINES, mark)])
        write_copied(place.sink(), [[of_run(sequence + 1, LINES, mark, (b"x",), (b"x",))]])
    assert len(place.server.documents(f"{place.group}_public_lines")) == 4


def test_rows_that_replace_all_are_found_when_they_are_whole(place: IndexedTable, sink: SearchSink) -> None:
    apply(sink, replacing(1, (b"1", b"a"), (b"2", b"a")))
    assert place.notes() == {"1": (100, "a"), "2": (100, "a")}
    *begun, end = replacing(2, (b"2", b"b"), number=4)
    apply(sink, begun)
    assert place.notes() == {"1": (100, "a"), "2": (100, "a")}
    apply(sink, [end])
    assert place.notes() == {"2": (200, "b")}
    apply(sink, replacing(3, number=7)[::2])
    assert place.notes() == {}


def test_nobody_searches_the_first_run_before_it_is_whole(place: IndexedTable, sink: SearchSink) -> None:
    *begun, end = replacing(1, (b"1", b"a"))
    apply(sink, begun)
    with pytest.raises(SearchServerError):
        place.read()
    apply(sink, [end])
    assert place.notes() == {"1": (100, "a")}


def test_a_run_that_was_given_up_is_never_found_and_goes_with_the_next(place: IndexedTable, sink: SearchSink) -> None:
    apply(sink, replacing(1, (b"1", b"a")))
    apply(sink, replacing(2, (b"2", b"half"), number=4)[:-1])
    apply(place.sink(), replacing(3, (b"3", b"c"), number=7))
    assert place.notes() == {"3": (300, "c")}
    assert place.generations() == [1, 3]


def test_of_what_was_replaced_only_the_newest_stays_for_a_while(place: IndexedTable, sink: SearchSink) -> None:
    for run in (1, 2, 3, 4):
        apply(sink, replacing(run, (b"1", b"a"), number=3 * run))
    assert place.generations() == [3, 4]


def test_a_worker_that_dies_anywhere_in_the_exchange_is_followed_by_one_that_ends_it(place: IndexedTable) -> None:
    apply(place.sink(), replacing(1, (b"1", b"a")))
    *begun, end = replacing(2, (b"2", b"b"), number=4)
    apply(place.sink(), begun)
    before, after = {"1": (100, "a")}, {"2": (200, "b")}
    with HttpProxy(place.server.port) as proxy:
        deaths = 0
        while True:
            number, is_done = proxy.arrived + 1 + deaths // 2, deaths % 2 == 1
            proxy.before = lambda exchange: Cut() if exchange.number >= number + is_done else None  # noqa: B023
            proxy.after = lambda exchange: Cut() if exchange.number >= number else None  # noqa: B023
            try:
                apply(place.sink(proxy.url), [end])
                break
            except TransientError:
                deaths += 1
            assert place.notes() in (before, after)
    assert deaths > 5
    assert place.notes() == after


def test_rows_of_an_earlier_version_are_refused(sink: SearchSink) -> None:
    with pytest.raises(TerminalError, match="an earlier version of pgsluice published them"):
        write_copied(sink, [[begins_run(1, ITEMS, RunMark())]])
