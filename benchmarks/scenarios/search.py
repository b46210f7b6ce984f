"""Search: how fast does a worker make documents of a backlog of inserts?

Into a server that says of each document that it is indexed and keeps none, so that the worker is measured; and into the fake
server of the tests, which takes more for a document than the worker does: beside it stands what that server takes of such
documents when nothing but one connection sends them. The worker is warm and suspended until the stream holds everything; a run
ends when the server has all documents.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import answering_server, data
from benchmarks.data import EVENTS, WARM_UP
from benchmarks.group import DEADLINE_S, Group, stop
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.processes import WORKER, ProcessWatch, suspended
from benchmarks.servers import Servers, start_servers
from pgsluice.worker.sinks.search.server_connection import JSON, NDJSON
from tests.servers.child import HOST
from tests.servers.http_proxy import Exchange, HttpProxy
from tests.servers.opensearch import FakeOpenSearch, SearchServer, SearchServerError
from tests.waiting import wait_until

NAME = "search"
ROWS = 200_000
WARM_UP_ROWS = 20_000
FAKE_KEYS = {"search-batch-bytes": "256KiB"}  # of larger requests the fake server takes more for each document
CONNECTIONS = 4  # of two tasks, with two each
RATE = "documents_per_s"
INTERVAL_S = 0.2
GZIP = b"\x1f\x8b"
"""What compressed bytes begin with."""

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
                    yield _drained(servers, server, name, repetition, rows, FAKE_KEYS if server.kind == "fake" else {})
            yield _sent(_requests(servers, repetition, rows), repetition, rows)


def _drained(
    servers: Servers, server: SearchServer, contestant: str, repetition: int, rows: int, keys: Mapping[str, Any], url: str = ""
) -> Run:
    """``url`` is by which way ``server`` is reached."""
    name = f"search_{'through' if url else server.kind}_{repetition}"
    source, target = servers.source.create_database(name), servers.target.create_database(name)
    data.create_tables(source)
    reached: dict[str, Any] = {"search-url": [url or server.url], "search-allow-hosts": ["127.0.0.1"]}
    group = Group(name.replace("_", "-"), servers, source, target, **{**reached, **keys})
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


def _requests(servers: Servers, repetition: int, rows: int) -> list[Exchange]:
    """All but questions that the worker asks of a fake server."""
    with AnsweringServer() as server, HttpProxy(server.port) as proxy:
        _drained(servers, server, FAKE_ALONE, repetition, rows, FAKE_KEYS, proxy.url)
        return [each for each in proxy.exchanges if each.method != "GET"]


def _sent(requests: list[Exchange], repetition: int, rows: int) -> Run:
    """What goes before the first documents of the rows is not measured."""
    bulk = [each for each in requests if each.target.startswith("/_bulk")]
    measured = [each for each in bulk if f"{EVENTS}-".encode() in _content(each)]
    with FakeOpenSearch() as server, ThreadPoolExecutor(CONNECTIONS) as threads:
        for each in requests:
            if each not in measured:
                _send(server, each)
        with ProcessWatch({"search server": server.pid}) as watch:
            began_at = time.time()
            list(threads.map(lambda each: _send(server, each), measured))
            ended_at = time.time()
        _wait(_counting(server), WARM_UP_ROWS + rows)
    return Run(NAME, FAKE_ALONE, repetition, {RATE: rows / (ended_at - began_at)}, rows, watch.usage())


def _content(request: Exchange) -> bytes:
    return gzip.decompress(request.body) if request.body.startswith(GZIP) else request.body


def _send(server: SearchServer, request: Exchange) -> None:
    headers = {"Content-Type": NDJSON if request.target.startswith("/_bulk") else JSON}
    headers |= {"Content-Encoding": "gzip"} if request.body.startswith(GZIP) else {}
    with contextlib.closing(http.client.HTTPConnection(HOST, server.port)) as connection:
        connection.request(request.method, request.target, request.body, headers)
        answer = connection.getresponse()
        said = answer.read()
    if answer.status != 200 or b'"errors":true' in said:
        raise RuntimeError(f"the fake server answered with status {answer.status} to a request that the worker had made")


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of inserts as documents of a search index",
    goals=(at_least(ANSWERING, RATE, 20_000),),
    plotted=(RATE,),
    measure=measure,
)
