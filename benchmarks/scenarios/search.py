"""Search: how fast does a worker make documents of a backlog of inserts?

Into a server that says of each document that it is indexed and keeps none, so that the worker is measured; and into the fake and
the real server of the tests, each of which takes more for a document than the worker does: beside them stands how fast each alone
takes the worker's requests, which were made before. The worker is warm and suspended until the stream holds everything; a run
ends when the server has all documents.
"""

from __future__ import annotations

import gzip
import http.client
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import answering_server
from benchmarks.data import EVENTS
from benchmarks.group import DEADLINE_S, Group
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.processes import ProcessWatch
from benchmarks.servers import Servers, start_servers
from benchmarks.warm_drain import drained
from pgsluice.worker.sinks.search.server_connection import JSON, NDJSON
from tests.servers.child import HOST
from tests.servers.http_proxy import Exchange, HttpProxy
from tests.servers.opensearch import FakeOpenSearch, RealOpenSearch, SearchServer
from tests.waiting import wait_until

NAME = "search"
ROWS = 200_000
FAKE_SHARE = 10  # of the rows the fake server gets one in so many
WARM_UP_ROWS = 20_000
CONNECTIONS = 4  # of two tasks, with two each
RATE = "documents_per_s"
INTERVAL_S = 0.1
INDEXES = "/public_*"

ANSWERING = "worker, answering server"
GZIP = b"\x1f\x8b"
"""What compressed bytes begin with."""


class AnsweringServer(SearchServer):
    """``benchmarks.answering_server``."""

    kind = "answering"
    title = "the answering server"
    keeps_data = False

    def _command(self, directory: Path) -> list[str]:
        return [sys.executable, answering_server.__file__, str(self.port)]

    def _answers(self) -> bool:
        return bool(self.ask("GET", "/"))


@dataclass(frozen=True, slots=True)
class _Trial:
    """``keys`` of the worker's configuration go with a server."""

    servers: Servers
    repetition: int
    rows: int
    keys: Mapping[str, Any]


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    kinds: tuple[tuple[type[SearchServer], int, dict[str, Any]], ...] = (
        (RealOpenSearch, rows, {}),
        # Of larger requests the fake server takes more for each document.
        (FakeOpenSearch, rows // FAKE_SHARE, {"search-batch-bytes": "256KiB"}),
    )
    with start_servers() as servers:
        for repetition in options.repetitions:
            with AnsweringServer() as server:
                yield _drained(_Trial(servers, repetition, rows, {}), server, ANSWERING)
            for kind, count, keys in kinds:
                trial = _Trial(servers, repetition, count, keys)
                with kind() as server:
                    yield _drained(trial, server, f"worker, {kind.kind} server")
                requests = _requests(trial, kind.kind)
                with kind() as server:
                    yield _sent(trial, server, requests)


def _drained(trial: _Trial, server: SearchServer, contestant: str, url: str = "") -> Run:
    """``url`` is by which way ``server`` is reached."""
    name = "_".join((NAME, "".join(letter for letter in contestant if letter.isalpha()), str(trial.repetition)))
    source, target = trial.servers.source.create_database(name), trial.servers.target.create_database(name)
    reached: dict[str, Any] = {"search-url": [url or server.url], "search-allow-hosts": ["127.0.0.1"]}
    group = Group(name.replace("_", "-"), trial.servers, source, target, **{**reached, **trial.keys})
    watched = {"search server": server.pid}
    elapsed_s, usage = drained(trial.servers, group, "search", (WARM_UP_ROWS, trial.rows), watched, waiting(server))
    return Run(NAME, contestant, trial.repetition, {RATE: trial.rows / elapsed_s}, trial.rows, usage)


def waiting(server: SearchServer) -> Callable[[int], None]:
    """Until it has so many documents."""

    def taken() -> int:
        """Some maybe twice."""
        if isinstance(server, AnsweringServer):
            return int(server.ask("GET", "/documents"))
        return int(server.ask("GET", f"{INDEXES}/_stats/indexing")["_all"]["primaries"].get("indexing", {}).get("index_total", 0))

    def found() -> int:
        if isinstance(server, AnsweringServer):
            return taken()
        server.ask("POST", f"{INDEXES}/_refresh")
        return server.count(INDEXES.strip("/"))

    def wait(documents: int) -> None:
        def has(count: Callable[[], int]) -> None:
            what = f"{documents} documents"
            wait_until(lambda: count() >= documents, deadline_s=DEADLINE_S, what=what, interval_s=INTERVAL_S)

        has(taken)
        has(found)

    return wait


def _requests(trial: _Trial, kind: str) -> list[Exchange]:
    """All but questions that the worker asks of a server of that kind."""
    with AnsweringServer() as server, HttpProxy(server.port) as proxy:
        _drained(trial, server, f"for {kind}", proxy.url)
        return [each for each in proxy.exchanges if each.method != "GET"]


def _sent(trial: _Trial, server: SearchServer, requests: list[Exchange]) -> Run:
    """What goes before the first documents of the rows is not measured. A server that keeps nothing was asked for some indexes
    more than once."""
    measured = [each for each in requests if each.target.startswith("/_bulk") and f"{EVENTS}-".encode() in _content(each)]
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        for each in requests:
            if each not in measured:
                _send(server, each)
        with ProcessWatch({"search server": server.pid}) as watch:
            began_at = monotonic()
            list(threads.map(lambda each: _send(server, each), measured))
            waiting(server)(WARM_UP_ROWS + trial.rows)
            elapsed_s = monotonic() - began_at
    name = f"{server.kind} server alone"
    return Run(NAME, name, trial.repetition, {RATE: trial.rows / elapsed_s}, trial.rows, watch.usage())


def _content(request: Exchange) -> bytes:
    return gzip.decompress(request.body) if request.body.startswith(GZIP) else request.body


def _send(server: SearchServer, request: Exchange) -> None:
    headers = {"Content-Type": NDJSON if request.target.startswith("/_bulk") else JSON}
    headers |= {"Content-Encoding": "gzip"} if request.body.startswith(GZIP) else {}
    with closing(http.client.HTTPConnection(HOST, server.port)) as connection:
        connection.request(request.method, request.target, request.body, headers)
        answer = connection.getresponse()
        said = answer.read()
    if (answer.status != 200 and request.method != "PUT") or b'"errors":true' in said:
        raise RuntimeError(f"the {server.kind} server answered with status {answer.status} to a request of the worker")


SCENARIO = Scenario(
    name=NAME,
    title="a backlog of inserts as documents of a search index",
    goals=tuple(at_least(contestant, RATE, 20_000) for contestant in (ANSWERING, "worker, real server", "worker, fake server")),
    plotted=(RATE,),
    measure=measure,
)
