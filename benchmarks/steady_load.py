"""Commits of one row at a steady rate: how long after its commit is a row visible at the target?

pgbench inserts one row per transaction over several connections, on a schedule that does not wait for anybody. Source commits
become visible at the target in their order, so the newest id seen there says of every row when it was: at the first look that saw
an id of the same or a later commit. A latency counts from the timestamp of the source's commit, which is taken before the commit
reaches the source's disk, to the end of that look: so it is too long by that wait, and by LOOK_INTERVAL_S at most. All clocks are
this machine's. The first seconds are not counted.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import data
from benchmarks.data import EVENTS, TargetWatch
from benchmarks.group import Group, stop
from benchmarks.measurement import NATIVE, Run
from benchmarks.native import Subscription
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch
from benchmarks.servers import Servers, start_servers
from tests.end_to_end import pgbench
from tests.servers import Database, PgsluiceProcess

PGSLUICE = "pgsluice"
CONTESTANTS = (NATIVE, PGSLUICE)

WARM_UP_S = 5.0
LOOK_INTERVAL_S = 0.004
CATCH_UP_DEADLINE_S = 120.0
CONNECTIONS = 8
LONGEST_LOAD_S = 24 * 3600

SOURCE_SETTINGS = {"track_commit_timestamp": "on"}

_SEQUENCE = "CREATE SEQUENCE ids"
INSERT = f"INSERT INTO {EVENTS} VALUES (nextval('ids'), 4711, 'created', 12.34, false, clock_timestamp(), md5('a note'))"
COMMITS = f"SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8, id FROM {EVENTS} WHERE id >= %s ORDER BY 1, 2"


class SteadyWriter:
    """A context in which pgbench runs ``script``, one transaction, ``commits_per_s`` times a second, or as often as the source
    can take it."""

    def __init__(self, source: Database, commits_per_s: int, script: str = f"{INSERT};") -> None:
        self._directory = tempfile.TemporaryDirectory()
        file = Path(self._directory.name) / "script.sql"
        file.write_text(script)
        schedule = ("-R", str(commits_per_s), "-T", str(LONGEST_LOAD_S))
        connections = ("-c", str(CONNECTIONS), "-j", "1")
        self._command = pgbench.command(source, "-n", "-M", "prepared", *connections, *schedule, "-f", str(file))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._process is not None
        ended_early = self._process.poll() is not None
        self._process.terminate()
        _, complaint = self._process.communicate()
        self._directory.cleanup()
        if ended_early:
            raise RuntimeError(f"pgbench ended by itself: {complaint.decode()}")


class Sightings:
    """The newest id at the target, over time (``time.time``)."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._times: list[float] = []

    def look(self, rows: TargetWatch) -> None:
        self.note(rows.newest_row(EVENTS), time.time())

    def note(self, newest: int, at: float) -> None:
        if not self._ids or newest > self._ids[-1]:
            self._ids.append(newest)
            self._times.append(at)

    def follow(self, rows: TargetWatch, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.look(rows)
            time.sleep(LOOK_INTERVAL_S)

    def latencies(self, commits: Sequence[tuple[float, int]], since: float, until: float) -> list[float]:
        """Of the rows committed between ``since`` and ``until``, sorted. ``commits`` is of every row at the source when it was
        committed and its id, in this order, from the first that was seen; the last one has been seen."""
        committed_at = {row_id: at for at, row_id in commits}
        seen = list(itertools.accumulate((committed_at[row_id] for row_id in self._ids), max))
        return sorted(self._times[bisect_left(seen, at)] - at for at, _ in commits if since <= at < until)


class SteadyLoad:
    """What one contestant is measured with. ``processes`` is the replicator and the worker, or nothing."""

    def __init__(
        self, servers: Servers, source: Database, target: Database, contestant: str, processes: tuple[PgsluiceProcess, ...] = ()
    ) -> None:
        self._source = source
        self._target = target
        self._contestant = contestant
        self._processes = processes
        self._roots = servers.roots() | {
            part: process.pid for part, process in zip((REPLICATOR, WORKER), processes, strict=False)
        }

    def measure(self, scenario: str, repetition: int, commits_per_s: int, seconds: float) -> Run:
        sightings = Sightings()
        with TargetWatch(self._target) as rows:
            first = insert_and_see(self._source, rows, self._processes)
            with SteadyWriter(self._source, commits_per_s):
                sightings.follow(rows, after(WARM_UP_S))
                since = time.time()
                with ProcessWatch(self._roots) as watch:
                    sightings.follow(rows, after(seconds))
                until = time.time()
                # Rows of the last seconds are seen while the load goes on, so that the end is like the middle.
                sightings.follow(rows, after(WARM_UP_S))
            insert_and_see(self._source, rows, self._processes)
            sightings.look(rows)
        commits = [(at, row_id) for at, row_id in self._source.execute(COMMITS, [first])]
        latencies = sightings.latencies(commits, since, until)
        figures = percentiles([1000 * latency for latency in latencies], "_ms")
        figures["commits_per_s"] = len(latencies) / (until - since)
        return Run(scenario, f"{self._contestant}, {commits_per_s:,}/s", repetition, figures, len(latencies), watch.usage())


@contextlib.contextmanager
def steady_source(settings: Mapping[str, str] | None = None) -> Iterator[tuple[Servers, Database]]:
    """Servers, the source with ``settings`` beside those that are needed, and a source database for the loads."""
    with start_servers(source_settings=SOURCE_SETTINGS | dict(settings or {})) as servers:
        source = servers.source.create_database("source")
        data.create_tables(source)
        source.execute(_SEQUENCE)
        yield servers, source


@contextlib.contextmanager
def steady_load(contestant: str, servers: Servers, source: Database, repetition: int) -> Iterator[SteadyLoad]:
    """The contestant replicates into a target database of its own, which is compared with the source at the end."""
    source.execute(f"TRUNCATE {EVENTS}")
    target = servers.target.create_database(f"{contestant}_{repetition}")
    data.create_tables(target)
    replicating = _natively if contestant == NATIVE else _by_pgsluice
    with replicating(servers, source, target) as load:
        yield load


@contextlib.contextmanager
def _natively(servers: Servers, source: Database, target: Database) -> Iterator[SteadyLoad]:
    subscription = Subscription(target.dbname, source, [EVENTS])
    subscription.create_slot()
    subscription.create(target)
    subscription.enable()
    yield SteadyLoad(servers, source, target, NATIVE)
    subscription.drop()
    data.require_equal(source, target, EVENTS)
    target.drop()


@contextlib.contextmanager
def _by_pgsluice(servers: Servers, source: Database, target: Database) -> Iterator[SteadyLoad]:
    group = Group(target.dbname.replace("_", "-"), servers, source, target)
    group.publish_until()  # makes what a worker needs
    with group.replicator() as replicator, group.worker() as worker:
        replicator.wait_for_log("replicating")
        yield SteadyLoad(servers, source, target, PGSLUICE, (replicator, worker))
        stop(replicator, worker)
    data.require_equal(source, target, EVENTS)
    group.drop()


def insert_and_see(source: Database, rows: TargetWatch, processes: tuple[PgsluiceProcess, ...]) -> int:
    """The id of a new row. Everything that was committed before it is at the target then."""
    [(row_id,)] = source.execute(f"{INSERT} RETURNING id")
    rows.wait_for_row(EVENTS, row_id, processes, CATCH_UP_DEADLINE_S)
    return int(row_id)


def after(seconds: float) -> Callable[[], bool]:
    """Whether they are over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def percentiles(values: Sequence[float], unit: str) -> dict[str, float]:
    """Of sorted values, as figures whose names end in ``unit``: of the value at or nearest to each rank."""
    last = len(values) - 1
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name + unit: values[round(share * last)] for name, share in shares.items()}
