"""A table is indexed anew while it is written and searched: searches never find fewer documents."""

from __future__ import annotations

import threading
import time

import pytest

from tests.background_thread import BackgroundThread
from tests.end_to_end.search_group import DEADLINE_S, Indexed, running, search_configuration
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.opensearch import SearchServer
from tests.waiting import wait_until

WRITES_PER_S = 500
LOOK_INTERVAL_S = 0.05


class Writer(BackgroundThread):
    """Adds rows, and changes some, until ``stop``."""

    def __init__(self, source: Database) -> None:
        super().__init__()
        self._source = source
        self.written = 0

    def _work(self, stopping: threading.Event) -> None:
        began_at = time.monotonic()
        with self._source.connect() as connection:
            while not stopping.wait(max(0.0, began_at + self.written / WRITES_PER_S - time.monotonic())):
                connection.execute("INSERT INTO items SELECT nextval('number'), 'new' FROM generate_series(1, 8)")
                connection.execute("UPDATE items SET note = 'changed' WHERE id IN (SELECT id FROM items LIMIT 2)")
                self.written += 10


class Reader(BackgroundThread):
    """Counts the documents of an alias, again and again, until ``stop``."""

    def __init__(self, server: SearchServer, alias: str) -> None:
        super().__init__()
        self._server = server
        self._alias = alias
        self.counts: list[int] = []

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.wait(LOOK_INTERVAL_S):
            self.counts.append(self._server.count(self._alias))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_searches_never_find_fewer_documents_while_a_table_is_indexed_anew(
    source_database: Database, nats_server: NatsServer, search_server: SearchServer, group: str
) -> None:
    source_database.execute(
        "CREATE TABLE items (id bigint PRIMARY KEY, note text); CREATE SEQUENCE number START 1000000;"
        "INSERT INTO items SELECT n, 'copied' FROM generate_series(1, 50000) n"
    )
    items = Indexed(source_database, nats_server.settings(), group, "items")
    keys = search_configuration(group, source_database, nats_server, search_server.url)
    writer, reader = Writer(source_database), Reader(search_server, items.alias)
    with running(keys) as worker:
        wait_until(lambda: items.count(search_server) >= 50000, deadline_s=DEADLINE_S, what="the copy")
        writer.start()
        reader.start()
        wait_until(lambda: reader.counts and reader.counts[-1] > 51000, deadline_s=DEADLINE_S, what="documents of changes")
        with PgsluiceProcess("search", "reindex", "items", "--wait", "200", config=keys) as command:
            assert command.wait(DEADLINE_S) == 0, command.log()
        wait_until(lambda: index_of(search_server, items) == f"{items.alias}-000002", deadline_s=DEADLINE_S, what="the new index")
        after = reader.counts[-1]
        wait_until(lambda: reader.counts[-1] > after + 1000, deadline_s=DEADLINE_S, what="documents of later changes")
        writer.stop()
        reader.stop()
        items.arrive(search_server, worker)
    assert reader.counts == sorted(reader.counts)
    print(f"{writer.written} changes, {len(reader.counts)} looks, {reader.counts[0]} to {reader.counts[-1]} documents")


def index_of(server: SearchServer, items: Indexed) -> str:
    """The one that is searched; "" before there is one."""
    found = {each["alias"]: each["index"] for each in server.ask("GET", "/_cat/aliases?format=json")}
    return str(found.get(items.alias, ""))
