"""Small commits at a steady rate: how long after a commit is its row visible at the target?

One connection inserts one row per transaction, on a schedule that does not wait for anybody. Ids grow in commit order, so the
newest id seen at the target says of every row when it was visible. A latency counts from when the source had answered the commit
to the first look that saw the row, so it is LOOK_INTERVAL_S too long at most. The first seconds are not counted.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import psycopg

from benchmarks import data
from benchmarks.data import EVENTS, TargetWatch
from benchmarks.group import Group, stop
from benchmarks.measurement import NATIVE, Options, Run, Scenario, at_most
from benchmarks.native import Subscription
from benchmarks.processes import WORKER, ProcessWatch
from benchmarks.servers import Servers, start_servers
from tests.servers import Database, PgsluiceProcess

NAME = "latency"
PGSLUICE = "pgsluice"
COMMITS_PER_S = 200
SECONDS = 20.0
WARM_UP_S = 5.0
LOOK_INTERVAL_S = 0.004
CATCH_UP_DEADLINE_S = 60.0

_INSERT = """
INSERT INTO events VALUES (%(id)s, 4711, 'created', 12.34, false, clock_timestamp(), md5(%(id)s::bigint::text))
"""


class SteadyWriter:
    """A context in which a thread commits rows, ``first`` on, at ``commits_per_s``; afterwards ``committed_at`` holds the time
    (``time.monotonic``) of each row's commit, in the order of their ids."""

    def __init__(self, source: Database, first: int, commits_per_s: int) -> None:
        self._source = source
        self._first = first
        self._interval_s = 1 / commits_per_s
        self._stop = threading.Event()
        self._error: psycopg.Error | None = None
        self._thread = threading.Thread(target=self._write, name="steady writer")
        self.committed_at: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        start = time.monotonic()
        try:
            with self._source.connect() as connection:
                for number in itertools.count():
                    if self._stop.wait(max(0.0, start + number * self._interval_s - time.monotonic())):
                        return
                    connection.execute(_INSERT, {"id": self._first + number}, prepare=True)
                    self.committed_at.append(time.monotonic())
        except psycopg.Error as error:
            self._error = error


class Sightings:
    """The newest id at the target, over time."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._times: list[float] = []

    def look(self, rows: TargetWatch) -> int:
        newest = rows.newest_row(EVENTS)
        if not self._ids or newest > self._ids[-1]:
            self._ids.append(newest)
            self._times.append(time.monotonic())
        return newest

    def follow(self, rows: TargetWatch, is_over: Callable[[int], bool]) -> None:
        """Looks until ``is_over`` says so of the newest id."""
        while not is_over(self.look(rows)):
            time.sleep(LOOK_INTERVAL_S)

    def seen_at(self, row_id: int) -> float:
        return self._times[bisect_left(self._ids, row_id)]


def measure(options: Options) -> Iterator[Run]:
    with start_servers() as servers:
        source = servers.source.create_database("source")
        data.create_tables(source)
        for repetition in range(1, options.repeat + 1):
            for contestant in (_native, _pgsluice):
                source.execute(f"TRUNCATE {EVENTS}")
                yield contestant(servers, source, repetition, options)


def _native(servers: Servers, source: Database, repetition: int, options: Options) -> Run:
    target = servers.target.create_database(f"native_{repetition}")
    data.create_tables(target)
    subscription = Subscription(f"native_{repetition}", source)
    subscription.create_slot()
    subscription.create(target)
    subscription.enable()
    run = Load(servers, source, target, options).measure(NATIVE, repetition, ())
    subscription.drop()
    data.require_equal(source, target, EVENTS)
    return run


def _pgsluice(servers: Servers, source: Database, repetition: int, options: Options) -> Run:
    target = servers.target.create_database(f"pgsluice_{repetition}")
    data.create_tables(target)
    group = Group(f"latency-{repetition}", servers, source, target)
    with group.replicator() as replicator, group.worker() as worker:
        replicator.wait_for_log("replicating")
        run = Load(servers, source, target, options).measure(PGSLUICE, repetition, (replicator, worker))
        stop(replicator, worker)
    data.require_equal(source, target, EVENTS)
    return run


class Load:
    """The steady load of one measurement."""

    def __init__(self, servers: Servers, source: Database, target: Database, options: Options) -> None:
        self._servers = servers
        self._source = source
        self._target = target
        self._commits_per_s = options.commits_per_s or COMMITS_PER_S
        self._seconds = options.seconds or SECONDS

    def measure(self, contestant: str, repetition: int, processes: tuple[PgsluiceProcess, ...]) -> Run:
        """``processes`` is the replicator and the worker, or nothing."""
        sightings = Sightings()
        roots = self._servers.roots() | {
            part: process.pid for part, process in zip(("replicator", WORKER), processes, strict=False)
        }
        with TargetWatch(self._target) as rows:
            data.insert(self._source, EVENTS, 1)
            rows.wait_for_row(EVENTS, 1, processes)
            with SteadyWriter(self._source, 2, self._commits_per_s) as writer:
                sightings.follow(rows, _after(WARM_UP_S))
                warm_rows = len(writer.committed_at)
                with ProcessWatch(roots) as watch:
                    sightings.follow(rows, _after(self._seconds))
                counted = range(warm_rows, len(writer.committed_at))
            last = 1 + len(writer.committed_at)
            rows.wait_for_row(EVENTS, last, processes, CATCH_UP_DEADLINE_S)
            sightings.look(rows)
        latencies = sorted(sightings.seen_at(2 + number) - writer.committed_at[number] for number in counted)
        figures = _percentiles(latencies) | {"commits_per_s": len(counted) / self._seconds}
        return Run(NAME, contestant, repetition, figures, len(counted), watch.usage())


def _after(seconds: float) -> Callable[[int], bool]:
    end = time.monotonic() + seconds
    return lambda newest: time.monotonic() >= end


def _percentiles(latencies: list[float]) -> dict[str, float]:
    """Of sorted seconds."""
    last = len(latencies) - 1
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: 1000 * latencies[round(share * last)] for name, share in shares.items()}


SCENARIO = Scenario(
    name=NAME,
    title="commits of one row at a steady rate, from the commit to its row being visible",
    goals=(at_most(PGSLUICE, "p50_ms", 400), at_most(PGSLUICE, "p99_ms", 900)),
    measure=measure,
)
