"""Tables are altered while a search worker follows them, and is killed while it makes the new indexes."""

from __future__ import annotations

import random
import threading

import pytest

from tests.end_to_end.search_group import Indexed, search_configuration
from tests.end_to_end.test_search_reindex import Reader
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.http_proxy import Exchange, HttpProxy, Refusal
from tests.servers.opensearch import FakeOpenSearch
from tests.waiting import wait_until

ROWS = 4000
DEADLINE_S = 240.0
SETTINGS = {"track-ddl": True, "search-batch-bytes": "256KiB", "search-timeout": "120s"}

_TABLE = f"""
CREATE TABLE items (id bigint PRIMARY KEY, note text, body text, n integer);
ALTER TABLE items ALTER body SET STORAGE EXTERNAL;
INSERT INTO items SELECT i, 'copied', repeat(md5(i::text), 80), i FROM generate_series(1, {ROWS}) i
"""

ALTERED = """
BEGIN;
UPDATE items SET note = 'before' WHERE id % 100 = 0;
INSERT INTO items VALUES (-1, 'before', 'x', 1);
ALTER TABLE items RENAME note TO title;
ALTER TABLE items DROP n;
UPDATE items SET title = 'behind' WHERE id % 150 = 0;
ALTER TABLE items ADD stars integer DEFAULT 3;
DELETE FROM items WHERE id = 7;
INSERT INTO items VALUES (-2, 'behind', 'x', 4);
COMMIT;
UPDATE items SET stars = 5 WHERE id = 8;
"""
"""The last one does not send the large value: it is read from the new index."""


class KilledAt:
    """Kills the worker when the server has answered the first request whose target holds a text, or before it has."""

    def __init__(self, worker: PgsluiceProcess, proxy: HttpProxy) -> None:
        self._worker = worker
        self._proxy = proxy

    def __call__(self, text: str, *, skip: int = 0, is_done: bool) -> None:
        killed, left = threading.Event(), [skip]

        def kill(exchange: Exchange) -> Refusal | None:
            if text not in exchange.target or killed.is_set():
                return None
            left[0] -= 1
            if left[0] >= 0:
                return None
            self._worker.kill()
            killed.set()
            return Refusal(503)

        self._proxy.before, self._proxy.after = (lambda _: None, kill) if is_done else (kill, lambda _: None)
        assert wait_until(killed.is_set, deadline_s=DEADLINE_S, what=f"request {text}")
        self._proxy.before = self._proxy.after = lambda _: None


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_worker_killed_while_it_makes_a_new_index_leaves_the_source_in_it(
    source_database: Database, nats_server: NatsServer, fake_opensearch: FakeOpenSearch, group: str
) -> None:
    """At any page, and around the moment at which the new index takes over; searches never find fewer documents."""
    source_database.execute(_TABLE)
    items = Indexed(source_database, nats_server.settings(), group, "items")
    choose = random.Random()
    with HttpProxy(fake_opensearch.port) as proxy:
        keys = search_configuration(group, source_database, nats_server, proxy.url, **SETTINGS)
        with (
            PgsluiceProcess("replicator", config=keys) as replicator,
            PgsluiceProcess("worker", "search", config=keys) as worker,
        ):
            replicator.wait_for_log("replicating")
            wait_until(
                lambda: items_there(fake_opensearch, items) >= ROWS, deadline_s=DEADLINE_S, what="the copy", interval_s=0.5
            )
            reader = Reader(fake_opensearch, items.alias)
            reader.start()
            source_database.execute(ALTERED)
            kill = KilledAt(worker, proxy)
            for text, skip, is_done in (
                ("_search/scroll", choose.randrange(3), True),
                ("_search/scroll", choose.randrange(3), False),
                ("_aliases", 0, choose.random() < 0.5),
                ("_mapping", 0, True),
            ):
                kill(text, skip=skip, is_done=is_done)
                worker.start()
            wait_until(lambda: items.differences(fake_opensearch) == [], deadline_s=DEADLINE_S, what="the source", interval_s=2.0)
            reader.stop()
            worker.terminate()
            assert worker.wait() == 0, worker.log()
            with PgsluiceProcess("ddl", "log", config=keys) as told:
                assert told.wait() == 0, told.log()
                assert "applied" in told.stdout()
    assert reader.counts[0] == ROWS
    assert min(reader.counts) == ROWS
    assert len(reader.counts) > 20


def items_there(server: FakeOpenSearch, items: Indexed) -> int:
    return server.count(items.alias) if any(name.startswith(items.alias) for name in server.indices()) else 0
