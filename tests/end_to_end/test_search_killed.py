"""A search worker is killed again and again under load: its indexes are the source, document by document, version by version."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pytest

from tests.background_thread import BackgroundThread
from tests.end_to_end.search_group import Indexed, running, search_configuration
from tests.search_servers import on_real_servers
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.http_proxy import Exchange, HttpProxy, Refusal
from tests.servers.opensearch import FakeOpenSearch, SearchServer, SearchServerError
from tests.waiting import wait_until

KILLS = int(os.environ.get("SEARCH_KILLS", "30"))
ROWS = 2000
START_DEADLINE_S = 600.0

_TABLE = """
CREATE TABLE items (id bigint PRIMARY KEY, note text, body text);
ALTER TABLE items ALTER body SET STORAGE EXTERNAL;
CREATE SEQUENCE number START 1000000;
"""
_ROWS = f"INSERT INTO items SELECT n, 'copied', repeat(md5(n::text), 100) FROM generate_series(1, {ROWS}) n"
_SOME = "id IN (SELECT id FROM items WHERE id > 0 ORDER BY random() LIMIT {some})"
"""Not the rows that ``is_caught_up`` looks for."""
_STATEMENTS = (
    "INSERT INTO items SELECT nextval('number'), 'new', repeat(md5(random()::text), 100) FROM generate_series(1, {some})",
    f"UPDATE items SET note = md5(random()::text) WHERE {_SOME}",
    f"UPDATE items SET body = repeat(md5(random()::text), 90) WHERE {_SOME}",
    f"UPDATE items SET id = nextval('number'), note = 'moved' WHERE {_SOME}",
    f"DELETE FROM items WHERE {_SOME}",
)


class Load(BackgroundThread):
    """Random changes of ``items``, several a second, until ``stop``."""

    def __init__(self, source: Database, choose: random.Random) -> None:
        super().__init__()
        self._source = source
        self._choose = choose

    def _work(self, stopping: threading.Event) -> None:
        with self._source.connect(autocommit=False) as connection:
            while not stopping.wait(self._choose.expovariate(10)):
                for _ in range(self._choose.randint(1, 3)):
                    statement = self._choose.choice(_STATEMENTS)
                    connection.execute(statement.format(some=int(50 ** self._choose.random())).encode())
                connection.commit()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_worker_killed_thirty_times_leaves_the_source_in_its_index(
    source_database: Database, nats_server: NatsServer, fake_opensearch: FakeOpenSearch, group: str
) -> None:
    """At a moment, or at a request, that chance chooses, before the server has done it or after."""
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"KILL_SEED={seed}")
    choose = random.Random(seed)
    source_database.execute(_TABLE + _ROWS)
    items = Indexed(source_database, nats_server.settings(), group, "items")
    load = Load(source_database, random.Random(seed))
    # The fake server takes the longer for each document the larger a request is, and between two kills a batch has to end.
    small = {"search-batch-bytes": "256KiB", "batch-bytes": "512KiB"}
    with HttpProxy(fake_opensearch.port) as proxy:
        keys = search_configuration(group, source_database, nats_server, proxy.url, **small)
        with running(keys) as worker:
            load.start()
            for _ in range(KILLS):
                kill_at_a_request(worker, proxy, int(300 ** choose.random()), is_done=choose.random() < 0.5)
                worker.start()
            load.stop()
            items.arrive(fake_opensearch, worker)
    print(f"{len(items.expected())} documents, {len(proxy.exchanges)} requests")


def kill_at_a_request(worker: PgsluiceProcess, proxy: HttpProxy, number: int, *, is_done: bool) -> None:
    """At the ``number``-th from now on, when the server has done it or before."""
    at, killed = proxy.arrived + number, threading.Event()

    def kill(exchange: Exchange) -> Refusal | None:
        if exchange.number != at:
            return None
        worker.kill()
        killed.set()
        return Refusal(503)

    proxy.before, proxy.after = (lambda _: None, kill) if is_done else (kill, lambda _: None)
    assert wait_until(killed.is_set, deadline_s=START_DEADLINE_S, what=f"request {number}")


@pytest.fixture
def watched_server(search_server: SearchServer) -> Iterator[SearchServer]:
    """It looks at its disk often."""
    interval = "cluster.info.update.interval"
    search_server.ask("PUT", "/_cluster/settings", {"persistent": {interval: "10s"}})
    yield search_server
    search_server.ask("PUT", "/_cluster/settings", {"persistent": {interval: None}})


@on_real_servers
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_server_that_is_killed_full_and_busy_in_turn_loses_nothing(
    source_database: Database, nats_server: NatsServer, watched_server: SearchServer, group: str
) -> None:
    source_database.execute(_TABLE + _ROWS)
    items = Indexed(source_database, nats_server.settings(), group, "items")
    load, server = Load(source_database, random.Random(1)), watched_server
    with HttpProxy(server.port) as proxy:
        keys = search_configuration(group, source_database, nats_server, proxy.url)
        with running(keys) as worker:
            load.start()
            is_caught_up(items, server, proxy)
            server.kill()
            worker.wait_for_log("trying again", START_DEADLINE_S)
            server.start()
            is_caught_up(items, server, proxy)
            proxy.before = lambda exchange: Refusal(429) if "_bulk" in exchange.target else None
            refused = proxy.arrived
            wait_until(lambda: proxy.arrived > refused + 5, deadline_s=START_DEADLINE_S, what="refused requests")
            proxy.before = lambda _: None
            is_caught_up(items, server, proxy)
            flood(server, "100%")
            wait_until(lambda: is_blocked(server, items), deadline_s=START_DEADLINE_S, what="the block of a full disk")
            worker.wait_for_log("may not be written now", START_DEADLINE_S)
            flood(server, None)
            wait_until(lambda: not is_blocked(server, items), deadline_s=START_DEADLINE_S, what="the end of the block")
            is_caught_up(items, server, proxy)
            load.stop()
            items.arrive(server, worker)


def is_caught_up(items: Indexed, server: SearchServer, proxy: HttpProxy) -> None:
    """What is written now arrives."""
    [(number,)] = items.source.execute("INSERT INTO items VALUES (nextval('number') * -1, 'mark', '') RETURNING id")
    query = {"query": {"ids": {"values": [str(number)]}}}

    def is_there() -> bool:
        try:
            server.ask("POST", f"/{items.alias}/_refresh")
            return bool(server.ask("POST", f"/{items.alias}/_search", query)["hits"]["hits"])
        except SearchServerError:  # the index is not there yet, or not again
            return False

    before = proxy.arrived
    wait_until(lambda: proxy.arrived > before, deadline_s=START_DEADLINE_S, what="a request")
    wait_until(is_there, deadline_s=START_DEADLINE_S, what="the row that was written last", interval_s=0.5)


def flood(server: SearchServer, share: str | None) -> None:
    """So much of the disk has to be free, or else indexes are blocked."""
    names = ("low", "high", "flood_stage")
    free = None if share is None else "100000gb"
    settings = {f"cluster.routing.allocation.disk.watermark.{name}": free for name in names}
    server.ask("PUT", "/_cluster/settings", {"transient": settings})


def is_blocked(server: SearchServer, items: Indexed) -> bool:
    index = f"{items.alias}-000001"
    found = server.ask("GET", f"/{index}/_settings")[index]["settings"]["index"]
    return bool(found.get("blocks", {}).get("read_only_allow_delete") == "true")
