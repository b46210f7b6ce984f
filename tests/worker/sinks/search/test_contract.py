"""The contract of all sinks, with a search server as the destination."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.testing import Destination, Promise
from pgsluice.testing.batch import apply, apply_in, write
from pgsluice.testing.changes_builder import insert, message
from pgsluice.testing.tried_batches import ACCOUNTS, EVENTS, LARGE_NOTE, batch, events, position
from pgsluice.worker.sinks.search.sink import SearchSink
from pgsluice.worker.sinks.sink import CatchUp, Lane, Sink
from tests.servers import NatsServer
from tests.servers.opensearch import SearchServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.contract import AT_LEAST_ONCE, SinkContract
from tests.worker.sinks.search.sinks import new_sink

LARGEST_REQUEST = 200_000
"""Of which the contract's large partitions need several."""


class SearchDestination:
    def __init__(self, server: SearchServer, nats: NatsSettings, group: str) -> None:
        self._server = server
        self._nats = nats
        self._group = group

    def new_sink(self) -> SearchSink:
        return new_sink(self._nats, self._group, self._server.url, batch_bytes=LARGEST_REQUEST)

    def documents(self, table: str) -> dict[str, tuple[int, dict[str, Any]]]:
        """Of the newest generation: what is searched is an older one while a copy is not whole."""
        found = [name for name in self._server.indices() if name.startswith(f"{self._group}_public_{table}-")]
        return self._server.documents(found[-1]) if found else {}

    def delivered(self) -> list[int]:
        """In the order of their versions, which is that of their transactions; an event has no key."""
        found = self.documents("events")
        return [source["id"] for version, source in sorted(found.values(), key=lambda each: (each[0], each[1]["id"]))]

    def accounts(self) -> dict[int, str]:
        return {source["id"]: source["note"] for _, source in self.documents("accounts").values()}


class TestSearch(SinkContract):
    kind = "search"
    promises = AT_LEAST_ONCE | {Promise.CATCH_UP}
    large_note = LARGE_NOTE[:30_000]

    @pytest.fixture
    def destination(self, search_server: SearchServer, nats_server: NatsServer, group: str) -> SearchDestination:
        ensure_bucket(nats_server.settings(), group)
        return SearchDestination(search_server, nats_server.settings(), group)

    def test_what_was_written_but_not_committed_is_not_delivered(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        """Tasks send by themselves: what they sent is there before the position, and the batch that comes again changes nothing
        in it."""
        batch_in_hand = batch([2, 3], note=self.large_note)
        write(sink, batch_in_hand)
        sink.close()
        successor.open()
        receipts = write(successor, batch([1]))
        assert successor.commit(receipts, position(1).stream_created) == position(1)
        write(successor, batch_in_hand)
        assert destination.delivered() == events(3)

    def test_tables_that_are_behind_the_others_have_a_place_of_their_own(
        self, destination: Destination, sink: Sink, successor: Sink
    ) -> None:
        """The contract's test says of one position what no stream says, that two rows were inserted there; without a key that is
        the document's id. So here the table that is behind is another one."""
        apply(sink, [[message(1, insert(EVENTS, b"1", b"n"))]])
        left = apply_in(sink, [[message(2, insert(EVENTS, b"2", b"n"))]], Lane.CHANGES, frozenset({ACCOUNTS.oid}))
        assert left.catch_up == CatchUp(1, 1000, 1, frozenset({ACCOUNTS.oid}))
        sink.close()
        assert successor.open() == left
        behind = [message(2, insert(ACCOUNTS, b"4", b"n"))]
        for _ in range(2):
            assert apply_in(successor, [behind], Lane.CATCH_UP, frozenset({ACCOUNTS.oid})) == position(2)
        assert destination.delivered() == [1, 2]
        assert destination.accounts() == {4: "n"}
