"""From the slot's backlog to documents of a search index, beside PGSync.

The backlog are inserts in transactions of 1,000 rows. Each contestant is warm, and suspended until the source holds everything; a
run ends when the server has all documents. PGSync reads the WAL and asks the source for the rows that it tells of; its documents
have no versions. Both write to a server that keeps nothing, and to a real OpenSearch. It is measured only when it is named, with
PGSYNC.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks import data
from benchmarks.data import EVENTS
from benchmarks.group import DEADLINE_S, Group, stop
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.pgsync import PgSync
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch, suspended
from benchmarks.scenarios.search import RATE, AnsweringServer, waiting
from benchmarks.servers import Servers, start_servers
from tests.servers import Database
from tests.servers.opensearch import RealOpenSearch, SearchServer
from tests.waiting import wait_until

NAME = "beside_pgsync"
ROWS = 50_000
WARM_UP_ROWS = 5_000
RATIO = "ratio_to_pgsync"
COLUMNS = ["id", "account", "kind", "amount", "settled", "happened_at", "note"]
SERVERS: tuple[type[SearchServer], ...] = (AnsweringServer, RealOpenSearch)


@dataclass(frozen=True, slots=True)
class _Contest:
    contestant: str
    source: Database
    pids: Mapping[str, int]


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers:
        for repetition in options.repetitions:
            for kind in SERVERS:
                name = f"beside_{kind.kind}_{repetition}"
                with kind() as server, _pgsync(servers, server, f"{name}_theirs") as contest:
                    theirs = _drained(servers, server, contest, repetition, rows)
                yield theirs
                with kind() as server, _pgsluice(servers, server, f"{name}_ours") as contest:
                    ours = _drained(servers, server, contest, repetition, rows)
                ours.figures[RATIO] = ours.figures[RATE] / theirs.figures[RATE]
                yield ours


def _drained(servers: Servers, server: SearchServer, contest: _Contest, repetition: int, rows: int) -> Run:
    wait = waiting(server)
    data.insert_in_parts(contest.source, EVENTS, WARM_UP_ROWS)
    wait(WARM_UP_ROWS)
    with contextlib.ExitStack() as stack:
        for pid in contest.pids.values():
            stack.enter_context(suspended(pid))
        data.insert_in_parts(contest.source, EVENTS, WARM_UP_ROWS + rows, first=WARM_UP_ROWS + 1)
        servers.settle()
        watch = ProcessWatch(servers.roots() | {"search server": server.pid} | dict(contest.pids)).start()
        began_at = time.monotonic()
    wait(WARM_UP_ROWS + rows)
    elapsed_s = time.monotonic() - began_at
    watch.stop()
    return Run(NAME, contest.contestant, repetition, {RATE: rows / elapsed_s}, rows, watch.usage())


@contextlib.contextmanager
def _pgsync(servers: Servers, server: SearchServer, name: str) -> Iterator[_Contest]:
    source = servers.source.create_database(name)
    data.create_tables(source)
    with PgSync(source, EVENTS, COLUMNS, server, f"public_{EVENTS}") as program:
        wait_until(lambda: "Starting logical replication" in program.log(), deadline_s=DEADLINE_S, what="PGSync's start")
        yield _Contest(f"PGSync, {server.kind} server", source, {"PGSync": program.pid})


@contextlib.contextmanager
def _pgsluice(servers: Servers, server: SearchServer, name: str) -> Iterator[_Contest]:
    source, target = servers.source.create_database(name), servers.target.create_database(name)
    data.create_tables(source)
    keys = {"search-url": [server.url], "search-allow-hosts": ["127.0.0.1"]}
    group = Group(name.replace("_", "-"), servers, source, target, **keys)
    with group.replicator() as replicator, group.command("worker", "search") as worker:
        replicator.wait_for_log("replicating")
        yield _Contest(f"pgsluice, {server.kind} server", source, {REPLICATOR: replicator.pid, WORKER: worker.pid})
        stop(replicator, worker)


SCENARIO = Scenario(
    name=NAME,
    title="a backlog from the slot into a search index, beside PGSync",
    goals=tuple(at_least(f"pgsluice, {kind.kind} server", RATIO, 3.0) for kind in SERVERS),
    plotted=(RATE,),
    measure=measure,
    is_long=True,
)
