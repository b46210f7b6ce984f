"""Indexes that were removed or put back to an earlier state, while the position says that their documents are there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.batch import apply, apply_copied
from pgsluice.testing.changes_builder import copied, insert, message, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers import NatsServer
from tests.servers.opensearch import SearchServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.search.indexed_table import IndexedTable

ITEMS = table("public.items", "id bigint", "note text", "body text")
OTHERS = table("public.others", "id bigint", "note text")
FIRST, SECOND = "00000000000003E8-a", "0000000000001388-b"
"""Snapshots at 1000 and 5000. The transaction in message n of the stream commits at 1000 n."""


@pytest.fixture
def place(search_server: SearchServer, nats_server: NatsServer, group: str) -> Iterator[IndexedTable]:
    ensure_bucket(nats_server.settings(), group)
    place = IndexedTable(nats_server.settings(), group, search_server, ITEMS, {FIRST: 1000, SECOND: 5000})
    yield place
    for sink in place.sinks:
        sink.close()


@pytest.fixture
def sink(place: IndexedTable) -> SearchSink:
    """Items 1 and 2 are copied, and item 3 came since."""
    sink = place.sink()
    apply_copied(sink, [[copied(1, ITEMS, (b"1", b"a", b"x"), (b"2", b"a", b"x"), snapshot=FIRST)]])
    place.note(Phase.FINISHED_COPY, FIRST, 1)
    sink.finish_copy()
    apply(sink, [[message(2, insert(ITEMS, b"3", b"b", b"x"))]])
    return sink


def test_an_index_that_is_gone_at_the_next_start_is_not_begun_anew_without_its_documents(
    place: IndexedTable, sink: SearchSink
) -> None:
    sink.close()
    place.server.ask("DELETE", f"/{place.alias}-000001")
    change = [[message(3, update(ITEMS, b"1", b"c", b"y"))]]
    for _ in range(2):
        with pytest.raises(TerminalError, match=r"index of table 'public.items' is gone.*pgsluice search reindex public.items"):
            apply(place.sink(), change)
    assert place.generations() == []
    place.note(Phase.FINISHED_COPY, SECOND, 3)
    again = place.sink()
    apply_copied(again, [[copied(3, ITEMS, (b"1", b"d", b"y"), snapshot=SECOND)]])
    again.finish_copy()
    apply(again, [[message(6, insert(ITEMS, b"4", b"e", b"z"))]])
    assert place.notes() == {"1": (4999, "d"), "4": (6000, "e")}


def test_a_table_that_was_never_copied_begins_an_index(place: IndexedTable, sink: SearchSink) -> None:
    sink.close()
    apply(place.sink(), [[message(3, insert(OTHERS, b"1", b"a"))]])
    assert len(place.server.documents(f"{place.group}_public_others")) == 1


def test_a_document_that_was_put_back_is_right_again_when_its_row_changes(place: IndexedTable, sink: SearchSink) -> None:
    """Nothing tells that it is not as it was; a change that does not hold all of it becomes a letter."""
    for key in ("1", "2"):
        place.server.ask("DELETE", f"/{place.alias}-000001/_doc/{key}")
    assert place.notes().keys() == {"3"}
    apply(sink, [[message(3, update(ITEMS, b"1", b"c", b"y"))]])
    assert place.notes() == {"1": (3000, "c"), "3": (2000, "b")}
    with pytest.raises(RejectedChanges) as raised:
        apply(sink, [[message(4, update(ITEMS, b"2", b"c", UNCHANGED))]])
    assert "the document is not there" in raised.value.rejections[0].reason


def test_an_index_that_is_removed_under_a_worker_stops_it(place: IndexedTable, sink: SearchSink) -> None:
    place.server.ask("DELETE", f"/{place.alias}-000001")
    with pytest.raises(TerminalError, match="the index was removed while it was written"):
        apply(sink, [[message(3, update(ITEMS, b"1", b"c", b"y"))]])


def test_an_alias_that_is_given_back_to_a_replaced_index_stops_the_worker(place: IndexedTable, sink: SearchSink) -> None:
    """What came since is not in that one."""
    apply_copied(sink, [[copied(3, ITEMS, (b"1", b"d", b"y"), snapshot=SECOND)]])
    place.note(Phase.FINISHED_COPY, SECOND, 3)
    sink.finish_copy()
    assert place.read() == [f"{place.alias}-000002"]
    remove, add = ({"index": f"{place.alias}-00000{number}", "alias": place.alias} for number in (2, 1))
    place.server.ask("POST", "/_aliases", {"actions": [{"remove": remove}, {"add": add}]})
    again = place.sink()
    with pytest.raises(TerminalError, match=r"'.*-000001' is searched again, .* give the alias back to '.*-000002'"):
        apply(again, [[message(6, insert(ITEMS, b"4", b"e", b"z"))]])
    place.server.ask("POST", "/_aliases", {"actions": [{"remove": add}, {"add": remove}]})
    apply(again, [[message(6, insert(ITEMS, b"4", b"e", b"z"))]])
    assert place.notes() == {"1": (4999, "d"), "4": (6000, "e")}
