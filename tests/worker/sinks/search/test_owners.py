"""An index holds one table of one group: what first made it says whose it is."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import Table
from pgsluice.testing.batch import apply, write, write_copied
from pgsluice.testing.changes_builder import copied, insert, message, table
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers import NatsServer
from tests.servers.opensearch import SearchServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.search.sinks import search_settings
from tests.worker.sinks.settings import worker_settings

ORDERS = table("shop.orders", "id bigint", "note text", "body text")


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (table("Shop.orders", "id bigint"), "holds documents of table 'shop.orders'"),
        (table("shop.or?ders", "id bigint"), "no name of an index"),
    ],
)
def test_a_table_whose_index_cannot_be_its_own_is_refused(sink: SearchSink, other: Table, sentence: str) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x"))]])
    with pytest.raises(TerminalError, match=sentence):
        write(sink, [[message(2, insert(other, b"1"))]])


def test_an_index_of_another_group_is_refused(
    sink: SearchSink, search_server: SearchServer, nats_server: NatsServer, group: str
) -> None:
    """Its versions are those of another source: what is older by them would be passed over without a word."""
    apply(sink, [[message(8, insert(ORDERS, b"1", b"a", b"x"))]])
    ensure_bucket(nats_server.settings(), "others")
    stranger = SearchSink(worker_settings("others", nats_server.settings()), search_settings(search_server.url, group))
    stranger.open()
    sentence = f"table 'shop.orders' of group '{group}': .* set search-index"
    with pytest.raises(TerminalError, match=sentence):
        write(stranger, [[message(2, insert(ORDERS, b"1", b"b", b"y"))]])
    with pytest.raises(TerminalError, match=sentence):
        write_copied(stranger, [[copied(1, ORDERS, (b"1", b"b", b"y"), snapshot="0000000000000064-a")]])
    stranger.close()
