"""Search: how fast does a worker make documents of a backlog of inserts?

Into a server that says of each document that it is indexed and keeps none, so that the worker is measured; and into the fake
server of the tests, which takes more for a document than the worker does: beside it stands what that server takes of such
documents when nothing but one connection sends them. The worker is warm and suspended until the stream holds everything; a run
ends when the server has all documents.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import answering_server, data
from benchmarks.data import EVENTS, WARM_UP
from benchmarks.group import DEADLINE_S, Group, stop
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.processes import WORKER, ProcessWatch, suspended
from benchmarks.servers import Servers, start_servers
from tests.servers.opensearch import FakeOpenSearch, SearchServer, SearchServerError
from tests.waiting import wait_until

NAME = "search"
ROWS = 200_000
WARM_UP_ROWS = 20_000
REQUEST_DOCUMENTS = 1_000  # of larger requests the fake server takes more for each document
RATE = "documents_per_s"
INTERVAL_S = 0.2

ANSWERING, FAKE, FAKE_ALONE = "worker, answering server", "worker, fake server", "fake server alone"

Count = Callable[[], int]


class AnsweringServer(SearchServer):
    """``benchmarks.answering_server``."""

    kind = "answering"
    keeps_data = False

    def _command(self, directory: Path) -> list[str]:
        return [sys.executable, answering_server.__file__, str(self.port)]

    def _started(self) -> bool | str:
        try:
            return bool(self.ask("GET", "/"))
        except OSError:
            return False


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers:
        for repetition in options.repetitions:
            for name, new_server in ((ANSWERING, AnsweringServer), (FAKE, FakeOpenSearch)):
                with new_server() as server:
                    yield _drained(servers, server, name, repetition, rows)
            with FakeOpenSearch() as server:
                yield _sent(server, repetition, rows)


def _drained(servers: Servers, server: SearchServer, contestant: str, repetition: int, rows: int) -> Run:
    name = f"search_{server.kind}_{repetition}"
    source, target = servers.source.create_database(name), servers.target.create_database(name)
    data.create_tables(source)
    keys: dict[str, Any] = {"search-url": [server.url], "search-allow-hosts": ["127.0.0.1"]}
    keys |= {"search-batch-bytes": "256KiB"} if server.kind == "fake" else {}
    group = Group(name.replace("_", "-"), servers, source, target, **keys)
    group.publish_until()
    data.insert_in_parts(source, WARM_UP, WARM_UP_ROWS)
    group.publish_until()
    count = _counting(server)
    with group.command("worker", "search") as worker:
        _wait(count, WARM_UP_ROWS)
        with suspended(worker.pid):
            data.insert_in_parts(source, EVENTS, rows)
            group.publish_until()
            servers.settle()
            watch = ProcessWatch(servers.roots() | {WORKER: worker.pid, "search server": server.pid}).start()
            began_at = time.time()
        _wait(count, WARM_UP_ROWS + rows)
        ended_at = time.time()
        watch.stop()
        stop(worker)
    return Run(NAME, contestant, repetition, {RATE: rows / (ended_at - began_at)}, rows, watch.usage())


def _counting(server: SearchServer) -> Count:
    """How many documents it has taken, as it shows them."""
    if isinstance(server, AnsweringServer):
        return lambda: int(server.ask("GET", "/documents"))

    def shown() -> int:
        try:
            return server.count("public_*")
        except (TimeoutError, SearchServerError):  # it has other things to do, or the index is not there yet
            return 0

    return shown


def _wait(count: Count, documents: int) -> None:
    wait_until(lambda: count() >= documents, deadline_s=DEADLINE_S, what=f"{documents} documents", interval_s=INTERVAL_S)


def _sent(server: SearchServer, repetition: int, rows: int) -> Run:
    """The same number of documents like those of EVENTS."""
    fields = {name: {"type": "long"} for name in ("id", "account")} | {"note": {"type": "keyword"}, "kind": {"type": "keyword"}}
    server.ask("PUT", "/alone", {"mappings": {"dynamic": "strict", "properties": fields}})
    document = b'{"index":{"_index":"alone","_id":"%d"}}\n{"id":%d,"account":7,"kind":"payment","note":"a note of some length"}\n'
    with ProcessWatch({"search server": server.pid}) as watch:
        began_at = time.time()
        for first in range(0, rows, REQUEST_DOCUMENTS):
            numbers = range(first, min(rows, first + REQUEST_DOCUMENTS))
            server.ask("POST", "/_bulk?filter_path=errors", b"".join(document % (n, n) for n in numbers))
        ended_at = time.time()
    return Run(NAME, FAKE_ALONE, repetition, {RATE: rows / (ended_at - began_at)}, rows, watch.usage())


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of inserts as documents of a search index",
    goals=(at_least(ANSWERING, RATE, 20_000),),
    plotted=(RATE,),
    measure=measure,
)
