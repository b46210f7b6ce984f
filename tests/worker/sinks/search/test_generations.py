"""A table that is copied again fills an index that nobody reads yet, which takes over when it is whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.errors import TransientError
from pgsluice.testing.batch import apply, apply_copied, apply_in, write_copied
from pgsluice.testing.changes_builder import copied, delete, insert, message, restart, table, update
from pgsluice.worker.sinks.search.sink import SearchSink
from pgsluice.worker.sinks.sink import Lane, Partition
from tests.servers import NatsServer
from tests.servers.http_proxy import Cut, HttpProxy
from tests.servers.opensearch import SearchServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.search.indexed_table import IndexedTable

ITEMS = table("public.items", "id bigint", "note text")
FIRST, SECOND, THIRD, OTHER = "00000000000003E8-a", "0000000000001388-b", "0000000000001770-c", "00000000000003E8-d"
"""Snapshots at 1000, 5000, 6000, and at 1000 of another time. The transaction in message n of the stream commits at 1000 n."""
LSNS = {FIRST: 1000, SECOND: 5000, THIRD: 6000, OTHER: 1000}


@pytest.fixture
def place(search_server: SearchServer, nats_server: NatsServer, group: str) -> Iterator[IndexedTable]:
    ensure_bucket(nats_server.settings(), group)
    place = IndexedTable(nats_server.settings(), group, search_server, ITEMS, LSNS)
    yield place
    for sink in place.sinks:
        sink.close()


@pytest.fixture
def copied_once(place: IndexedTable) -> SearchSink:
    """Items 1 and 2 are copied; a change of the stream made item 2 another, and one added item 3."""
    sink = place.sink()
    apply_copied(sink, [[copied(1, ITEMS, (b"1", b"a"), (b"2", b"a"), snapshot=FIRST)]])
    place.note(Phase.FINISHED_COPY, FIRST, 1)
    sink.finish_copy()
    apply(sink, [[message(2, update(ITEMS, b"2", b"b")), message(3, insert(ITEMS, b"3", b"b"))]])
    return sink


BEFORE = {"1": (999, "a"), "2": (2000, "b"), "3": (3000, "b")}
AFTER = {"1": (4999, "c"), "2": (4999, "b"), "3": (4999, "b"), "4": (4999, "c")}
"""As of the second snapshot."""


def begin_again(sink: SearchSink, sequence: int = 2, snapshot: str = SECOND) -> None:
    apply_copied(sink, [[restart(sequence, ITEMS, snapshot=snapshot)]])


def fill(sink: SearchSink, sequence: int = 3, snapshot: str = SECOND) -> None:
    rows = (b"1", b"c"), (b"2", b"b"), (b"3", b"b"), (b"4", b"c")
    apply_copied(sink, [[copied(sequence, ITEMS, *rows[:2], snapshot=snapshot)]])
    apply_copied(sink, [[copied(sequence + 1, ITEMS, *rows[2:], snapshot=snapshot)]])


def test_the_first_copy_is_searched_while_it_goes_on(place: IndexedTable, copied_once: SearchSink) -> None:
    assert place.notes() == BEFORE
    assert place.generations() == [1]


def test_searches_find_what_was_there_until_the_copy_is_whole(place: IndexedTable, copied_once: SearchSink) -> None:
    place.note(Phase.DATA_SYNC, SECOND)
    begin_again(copied_once)
    copied_once.finish_copy()  # of another table
    fill(copied_once)
    copied_once.finish_copy()
    assert place.notes() == BEFORE
    place.note(Phase.FINISHED_COPY, SECOND, 4)
    copied_once.finish_copy()
    assert place.notes() == AFTER
    assert place.generations() == [1, 2]
    apply(copied_once, [[message(6, delete(ITEMS, b"1", None), update(ITEMS, b"2", b"d"))]])
    assert place.notes() == {"2": (6000, "d"), "3": (4999, "b"), "4": (4999, "c")}


def test_an_index_that_is_filled_is_as_durable_as_others_when_it_takes_over(place: IndexedTable, copied_once: SearchSink) -> None:
    def settings(number: int) -> tuple[str, str | None]:
        index = f"{place.alias}-{number:06d}"
        found = place.server.ask("GET", f"/{index}/_settings")[index]["settings"]["index"]
        return found.get("number_of_replicas", "1"), found.get("refresh_interval")

    place.note(Phase.DATA_SYNC, SECOND)
    begin_again(copied_once)
    assert settings(2) == ("0", "-1")
    place.note(Phase.FINISHED_COPY, SECOND, 2)
    copied_once.finish_copy()
    assert settings(2) == settings(1)


def test_each_index_remembers_what_was_deleted_for_ten_minutes(place: IndexedTable, copied_once: SearchSink) -> None:
    """By itself a server forgets it after one, and would take a request that was delayed for longer."""
    begin_again(copied_once)
    for number in place.generations():
        index = f"{place.alias}-{number:06d}"
        assert place.server.ask("GET", f"/{index}/_settings")[index]["settings"]["index"]["gc_deletes"] == "10m"
    assert place.generations() == [1, 2]


def test_rows_that_are_not_all_applied_do_not_take_over(place: IndexedTable, copied_once: SearchSink) -> None:
    """The replicator is ahead of the worker."""
    place.note(Phase.FINISHED_COPY, SECOND, 4)
    begin_again(copied_once)
    copied_once.finish_copy()
    assert place.notes() == BEFORE
    write_copied(copied_once, [[copied(3, ITEMS, (b"1", b"c"), snapshot=SECOND)]])
    copied_once.finish_copy()
    assert place.notes() == BEFORE


def test_changes_find_the_new_index_though_nobody_said_that_the_copy_is_finished(
    place: IndexedTable, copied_once: SearchSink
) -> None:
    begin_again(copied_once)
    fill(copied_once)
    place.note(Phase.FINISHED_COPY, SECOND, 4)
    apply_in(copied_once, [[message(6, update(ITEMS, b"2", b"d"))]], Lane.CATCH_UP, frozenset({ITEMS.oid}))
    assert place.notes() == AFTER | {"2": (6000, "d")}


def test_the_next_process_goes_on_with_what_was_filled(place: IndexedTable, copied_once: SearchSink) -> None:
    begin_again(copied_once)
    apply_copied(copied_once, [[copied(3, ITEMS, (b"1", b"c"), (b"2", b"b"), snapshot=SECOND)]])
    write_copied(copied_once, [[copied(4, ITEMS, (b"3", b"b"), snapshot=SECOND)]])
    copied_once.close()
    successor = place.sink()
    apply_copied(successor, [[copied(4, ITEMS, (b"3", b"b"), (b"4", b"c"), snapshot=SECOND)]])
    successor.close()
    place.note(Phase.FINISHED_COPY, SECOND, 4)
    last = place.sink()
    last.finish_copy()
    assert place.notes() == AFTER
    assert place.generations() == [1, 2]


def test_a_copy_that_was_given_up_changes_nothing(place: IndexedTable, copied_once: SearchSink) -> None:
    begin_again(copied_once)
    place.note(Phase.ERRORED, SECOND)
    copied_once.finish_copy()
    assert place.notes() == BEFORE


def test_dead_letters_are_not_replayed_into_an_index_that_is_about_to_be_replaced(
    place: IndexedTable, copied_once: SearchSink
) -> None:
    begin_again(copied_once)
    place.note(Phase.DATA_SYNC, SECOND)
    with pytest.raises(TransientError, match="is being filled"):
        place.sink(is_replay=True)
    place.note(Phase.ERRORED, SECOND)
    place.sink(is_replay=True)
    place.note(Phase.FINISHED_COPY, SECOND, 2)
    copied_once.finish_copy()
    apply(place.sink(is_replay=True), [[message(6, insert(ITEMS, b"7", b"replayed"))]])
    assert place.notes() == {"7": (6000, "replayed")}


def test_of_a_copy_that_is_begun_twice_the_last_one_counts(place: IndexedTable, copied_once: SearchSink) -> None:
    begin_again(copied_once)
    apply_copied(copied_once, [[copied(3, ITEMS, (b"9", b"x"), snapshot=SECOND)]])
    begin_again(copied_once, 4, THIRD)
    apply_copied(copied_once, [[copied(5, ITEMS, (b"1", b"e"), snapshot=THIRD)]])
    place.note(Phase.FINISHED_COPY, THIRD, 5)
    copied_once.finish_copy()
    assert place.notes() == {"1": (5999, "e")}
    assert place.generations() == [1, 3]


def test_a_table_without_rows_is_an_empty_index(place: IndexedTable, copied_once: SearchSink) -> None:
    begin_again(copied_once)
    place.note(Phase.FINISHED_COPY, SECOND, 2)
    copied_once.finish_copy()
    assert place.notes() == {}


def test_versions_begin_anew(place: IndexedTable, copied_once: SearchSink) -> None:
    """The source was put back to an older time, or is another cluster: its LSNs are lower."""
    apply(copied_once, [[message(9, update(ITEMS, b"1", b"future"))]])
    begin_again(copied_once, 2, OTHER)
    apply_copied(copied_once, [[copied(3, ITEMS, (b"1", b"past"), snapshot=OTHER)]])
    place.note(Phase.FINISHED_COPY, OTHER, 3)
    copied_once.finish_copy()
    assert place.notes() == {"1": (999, "past")}


def test_a_task_that_was_given_up_reaches_no_reader(place: IndexedTable, copied_once: SearchSink) -> None:
    """What it writes goes to the index that it was told of."""
    late, partition = copied_once.writer(), Partition(1, 1)
    list(late.write(partition, iter([message(4, insert(ITEMS, b"7", b"late"))])))
    begin_again(copied_once)
    fill(copied_once)
    place.note(Phase.FINISHED_COPY, SECOND, 4)
    copied_once.finish_copy()
    list(late.write(partition, iter([message(4, insert(ITEMS, b"7", b"late"))])))
    assert place.notes() == AFTER


def test_replaced_indexes_go_when_their_time_has_come(place: IndexedTable, copied_once: SearchSink) -> None:
    begin_again(copied_once)
    fill(copied_once)
    place.note(Phase.FINISHED_COPY, SECOND, 4)
    copied_once.finish_copy()
    filled = copied_once._generations
    filled.sweep()
    assert place.generations() == [1, 2]
    copied_once.close()
    hurried = place.sink(keep_old_s=0.0)
    begin_again(hurried, 5, THIRD)
    place.note(Phase.FINISHED_COPY, THIRD, 5)
    hurried.finish_copy()
    assert place.generations() == [1, 3]
    index = f"{place.alias}-000001"
    said = place.server.ask("GET", f"/{index}/_mapping")[index]["mappings"]["_meta"]["pgsluice"]
    place.server.ask("PUT", f"/{index}/_mapping", {"_meta": {"pgsluice": said | {"delete_after": 1}}})
    hurried._generations.sweep()
    assert place.generations() == [3]


def test_an_old_index_that_a_person_reads_again_stays(place: IndexedTable, copied_once: SearchSink) -> None:
    begin_again(copied_once)
    place.note(Phase.FINISHED_COPY, SECOND, 2)
    copied_once.finish_copy()
    index = f"{place.alias}-000001"
    place.server.ask("PUT", f"/{index}/_mapping", {"_meta": {"pgsluice": {"table": "public.items", "delete_after": 1}}})
    place.server.ask("PUT", f"/{index}/_alias/{place.alias}")
    copied_once._generations.sweep()
    assert place.generations() == [1, 2]


def test_a_change_of_indexes_that_breaks_off_anywhere_is_done_again(place: IndexedTable, copied_once: SearchSink) -> None:
    """A process dies before any of its requests, and before each answer; the next one goes on."""
    begin_again(copied_once)
    fill(copied_once)
    copied_once.close()
    place.note(Phase.FINISHED_COPY, SECOND, 4)
    with HttpProxy(place.server.port) as proxy:
        deaths = 0
        while True:
            _end_at(proxy, proxy.arrived + 1 + deaths // 2, is_done=deaths % 2 == 1)
            try:
                place.sink(proxy.url).finish_copy()
                break
            except TransientError:
                deaths += 1
            assert len(place.read()) == 1
            assert place.notes() in (BEFORE, AFTER)
    assert deaths > 10
    assert place.notes() == AFTER
    assert place.read() == [f"{place.alias}-000002"]
    assert place.generations() == [1, 2]


def _end_at(proxy: HttpProxy, number: int, *, is_done: bool) -> None:
    """From that request on nothing is answered; that one itself reaches the server, if ``is_done``."""
    proxy.before = lambda exchange: Cut() if exchange.number >= number + is_done else None
    proxy.after = lambda exchange: Cut() if exchange.number >= number else None
