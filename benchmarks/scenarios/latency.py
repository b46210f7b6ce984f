"""Small commits at a steady rate: how long after a commit is its row visible at the target?

pgbench inserts one row per transaction over several connections, on a schedule that does not wait for anybody. Source commits
become visible at the target in their order, so the newest id seen there says of every row when it was: at the first look that saw
an id of the same or a later commit. A latency counts from the timestamp of the source's commit, which is taken before the commit
reaches the source's disk, to the end of that look: so it is too long by that wait, and by LOOK_INTERVAL_S at most. All clocks are
this machine's. The first seconds are not counted.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import data
from benchmarks.data import EVENTS, TargetWatch
from benchmarks.group import Group, stop
from benchmarks.measurement import NATIVE, Options, Run, Scenario, at_most
from benchmarks.native import Subscription
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch
from benchmarks.servers import Servers, start_servers
from tests.end_to_end import pgbench
from tests.servers import Database, PgsluiceProcess

NAME = "latency"
PGSLUICE = "pgsluice"
COMMITS_PER_S = (100, 1_000, 5_000)
SECONDS = 20.0
WARM_UP_S = 5.0
LOOK_INTERVAL_S = 0.004
CATCH_UP_DEADLINE_S = 120.0
CONNECTIONS = 8
LONGEST_LOAD_S = 3600

SOURCE_SETTINGS = {"track_commit_timestamp": "on"}

_SEQUENCE = "CREATE SEQUENCE ids"
_INSERT = f"INSERT INTO {EVENTS} VALUES (nextval('ids'), 4711, 'created', 12.34, false, clock_timestamp(), md5('a note'))"
_COMMITS = f"SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8, id FROM {EVENTS} ORDER BY 1, 2"


class SteadyWriter:
    """A context in which pgbench commits rows at ``commits_per_s``, or at the rate that the source can take."""

    def __init__(self, source: Database, commits_per_s: int) -> None:
        self._directory = tempfile.TemporaryDirectory()
        script = Path(self._directory.name) / "insert.sql"
        script.write_text(_INSERT + ";")
        schedule = ("-R", str(commits_per_s), "-T", str(LONGEST_LOAD_S))
        connections = ("-c", str(CONNECTIONS), "-j", "1")
        self._command = pgbench.command(source, "-n", "-M", "prepared", *connections, *schedule, "-f", str(script))
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
        committed and its id, in this order; the last one has been seen."""
        committed_at = {row_id: at for at, row_id in commits}
        seen = list(itertools.accumulate((committed_at[row_id] for row_id in self._ids), max))
        return sorted(self._times[bisect_left(seen, at)] - at for at, _ in commits if since <= at < until)


def measure(options: Options) -> Iterator[Run]:
    rates = (options.commits_per_s,) if options.commits_per_s else COMMITS_PER_S
    with start_servers(source_settings=SOURCE_SETTINGS) as servers:
        source = servers.source.create_database("source")
        data.create_tables(source)
        source.execute(_SEQUENCE)
        for repetition in options.repetitions:
            for contestant in (_native, _pgsluice):
                source.execute(f"TRUNCATE {EVENTS}")
                yield from contestant(servers, source, repetition, rates, options.seconds or SECONDS)


def _native(servers: Servers, source: Database, repetition: int, rates: tuple[int, ...], seconds: float) -> list[Run]:
    target = servers.target.create_database(f"native_{repetition}")
    data.create_tables(target)
    subscription = Subscription(f"native_{repetition}", source, [EVENTS])
    subscription.create_slot()
    subscription.create(target)
    subscription.enable()
    load = Load(servers, source, target, seconds, ())
    runs = [load.measure(NATIVE, repetition, rate) for rate in rates]
    subscription.drop()
    data.require_equal(source, target, EVENTS)
    target.drop()
    return runs


def _pgsluice(servers: Servers, source: Database, repetition: int, rates: tuple[int, ...], seconds: float) -> list[Run]:
    target = servers.target.create_database(f"pgsluice_{repetition}")
    data.create_tables(target)
    group = Group(f"latency-{repetition}", servers, source, target)
    with group.replicator() as replicator, group.worker() as worker:
        replicator.wait_for_log("replicating")
        load = Load(servers, source, target, seconds, (replicator, worker))
        runs = [load.measure(PGSLUICE, repetition, rate) for rate in rates]
        stop(replicator, worker)
    data.require_equal(source, target, EVENTS)
    group.drop()
    return runs


class Load:
    """The steady load of a contestant's measurements. ``processes`` is the replicator and the worker, or nothing."""

    def __init__(
        self, servers: Servers, source: Database, target: Database, seconds: float, processes: tuple[PgsluiceProcess, ...]
    ) -> None:
        self._source = source
        self._target = target
        self._seconds = seconds
        self._processes = processes
        self._roots = servers.roots() | {
            part: process.pid for part, process in zip((REPLICATOR, WORKER), processes, strict=False)
        }

    def measure(self, contestant: str, repetition: int, commits_per_s: int) -> Run:
        sightings = Sightings()
        with TargetWatch(self._target) as rows:
            self._wait_for_new_row(rows)
            with SteadyWriter(self._source, commits_per_s):
                sightings.follow(rows, _after(WARM_UP_S))
                since = time.time()
                with ProcessWatch(self._roots) as watch:
                    sightings.follow(rows, _after(self._seconds))
                until = time.time()
                # Rows of the last seconds are seen while the load goes on, so that the end is like the middle.
                sightings.follow(rows, _after(WARM_UP_S))
            self._wait_for_new_row(rows)
            sightings.look(rows)
        commits = [(at, row_id) for at, row_id in self._source.execute(_COMMITS)]
        latencies = sightings.latencies(commits, since, until)
        figures = _percentiles(latencies) | {"commits_per_s": len(latencies) / (until - since)}
        return Run(NAME, f"{contestant}, {commits_per_s:,}/s", repetition, figures, len(latencies), watch.usage())

    def _wait_for_new_row(self, rows: TargetWatch) -> None:
        """Everything that was committed before is at the target then."""
        [(row_id,)] = self._source.execute(f"{_INSERT} RETURNING id")
        rows.wait_for_row(EVENTS, row_id, self._processes, CATCH_UP_DEADLINE_S)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _percentiles(latencies: list[float]) -> dict[str, float]:
    """Of sorted seconds."""
    last = len(latencies) - 1
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: 1000 * latencies[round(share * last)] for name, share in shares.items()}


SCENARIO = Scenario(
    name=NAME,
    title="commits of one row at a steady rate, from the commit to its row being visible",
    goals=(at_most(f"{PGSLUICE}, 1,000/s", "p50_ms", 300), at_most(f"{PGSLUICE}, 1,000/s", "p99_ms", 700)),
    plotted=("p50_ms", "p99_ms"),
    measure=measure,
)
