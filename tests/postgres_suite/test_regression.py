"""PostgreSQL's regression suite at the source of a group: after each file all tables of source and target are equal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from fnmatch import fnmatch

import psycopg
import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import Outcome
from tests.postgres_suite.contents import MARKER_SCHEMA, Contents, Name
from tests.postgres_suite.known import known
from tests.postgres_suite.regression import RegressionFiles, errors_of, prepare
from tests.postgres_suite.sources import VERSIONS
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.postgres_suite, pytest.mark.timeout(4 * 3600)]

COPY = "copy of all tables"
EQUAL, DIFFERENT, STOPS, NOT_RUN = "equal", "different", "stops", "not run"
PATIENCE_S = 120.0
"""For how long no table more becomes equal, before those that are not are taken for different."""
SETTLE_DEADLINE_S = 1800.0
SETTINGS = {"max_prepared_transactions": "2", "max_locks_per_transaction": "256"}


@pytest.fixture
def source(version: int) -> Iterator[Database]:
    with PostgresServer(SETTINGS, version=version) as server:
        yield server.create_database("regression")


@pytest.fixture
def target_server(version: int) -> Iterator[PostgresServer]:
    with PostgresServer(SETTINGS, version=version) as server:
        yield server


class LiveGroup:
    """A group that follows ``source`` into a target; when a process has stopped a new group copies everything into a new one."""

    def __init__(self, source: Database, target_server: PostgresServer, nats: NatsServer) -> None:
        self._source, self._target_server, self._nats = source, target_server, nats
        self._marks = self._number = 0
        self._begin()

    def _begin(self, **more: object) -> None:
        self._number += 1
        self._target = self._target_server.create_database(f"target_{self._number}")
        modes = {
            "copy-and-stream": True,
            "track-ddl": True,
            "tables": ["*.*"],
            "ddl-policy": {"drop-table": "drop"},
            "check-interval": "5s",
        }
        self._keys = configuration(f"regression-{self._number}", self._source, self._target, self._nats, **modes | more)
        self._processes = GroupUnderTest(self._keys).__enter__()
        self.contents = self._opened()
        self._given_up: dict[Name, str] = {}

    def _answers(self) -> bool:
        try:
            self._source.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _opened(self) -> Contents:
        wait_until(self._answers, what="the source", interval_s=0.2)
        return Contents(self._source, self._target)

    def close(self) -> None:
        self.contents.close()
        self._processes.__exit__(None, None, None)

    def renew(self, **more: object) -> None:
        """``more`` is written into the new group's configuration."""
        self.close()
        Outcome(PgsluiceProcess("drop", "--yes", config=self._keys), 60.0)
        self._begin(**more)

    def stopped(self) -> str:
        """The last lines of the process that ended; "" while both run."""
        for process in (self._processes.replicator, self._processes.worker):
            if not process.is_running:
                lines = ("\n" + process.log()).partition("\npgsluice: ")[2].splitlines()
                return f"{process.role} ended: {' '.join(lines[:6])}"
        return ""

    def settle(self) -> tuple[int, dict[Name, str]]:
        """Waits until the group has applied what the source has now, and all tables are equal; returns how many tables there are,
        and those that are not equal and were before. What was told once is not waited for again."""
        wait_until(self._answers, what="the source", interval_s=0.2)
        self._marks += 1
        self._source.execute(f"INSERT INTO {MARKER_SCHEMA}.marker VALUES (%s)", [self._marks])
        found: tuple[int, dict[Name, str]] = (0, {})
        progress, at = -1, time.monotonic()

        def is_settled() -> bool:
            nonlocal found, progress, at
            if self.stopped():
                return True
            try:
                count, differing = self.contents.compared()
            except psycopg.OperationalError:  # the file's last statement ended the server
                self.contents = self._opened()
                return False
            self._given_up = {name: how for name, how in self._given_up.items() if name in differing}
            found = (count, {name: how for name, how in differing.items() if name not in self._given_up})
            if len(found[1]) != progress:
                progress, at = len(found[1]), time.monotonic()
            return not found[1] or time.monotonic() - at > PATIENCE_S

        wait_until(is_settled, deadline_s=SETTLE_DEADLINE_S, interval_s=0.3)
        self._given_up |= found[1]
        return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_group_follows_the_regression_suite(
    source: Database, target_server: PostgresServer, nats_server: NatsServer, version: int
) -> None:
    prepare(source)
    files = RegressionFiles(version, source)
    listed = known("regression", version)
    schedule = [[name for name in names if is_chosen(name)] for names in files.schedule()]
    results, left_over = Results(sum(map(len, schedule)) + 1), set[Name]()
    group = LiveGroup(source, target_server, nats_server)
    try:
        group.settle()
        for names in schedule:
            group.contents.forget()
            for name in names:
                if name in listed and listed[name].outcome == NOT_RUN:
                    results.leave_out(name, listed[name].reason)
                    continue
                began = time.monotonic()
                refused = len(list(errors_of(files.run(name))))
                results.add(name, group, f"{refused} statements refused by the source in {time.monotonic() - began:.1f} s")
                if group.stopped():
                    left_over |= group.contents.left_over()
                    group.renew()
        left_over |= group.contents.left_over()
        group.renew(publish=["insert", "truncate"])  # nobody updates any more, so no identity is missing
        results.add(COPY, group, "by a new group")
    finally:
        group.close()
        files.close()
    print(f"dropped at the source while they were to be copied, and left at the target: {sorted(left_over)}")
    print(f"PostgreSQL {version}, regression suite: {results.counts()}")
    assert results.differing == {file: (entry.outcome, entry.parts) for file, entry in listed.items() if is_chosen(file)}


def is_chosen(file: str) -> bool:
    chosen = os.environ.get("POSTGRES_SUITE_FILES", "*").split(",")
    return any(fnmatch(file, each) for each in ("test_setup", *chosen))


class Results:
    """What became of each file, told as it is known."""

    def __init__(self, total: int) -> None:
        self._total, self._begun = total, time.monotonic()
        self._outcomes: dict[str, str] = {}
        self.differing: dict[str, tuple[str, frozenset[str]]] = {}

    def add(self, name: str, group: LiveGroup, more: str) -> None:
        began = time.monotonic()
        count, differing = group.settle()
        settled_s, stopped = time.monotonic() - began, group.stopped()
        outcome = STOPS if stopped else DIFFERENT if differing else EQUAL
        self._outcomes[name] = outcome
        if outcome != EQUAL:
            tables = frozenset() if stopped else frozenset(".".join(table) for table in differing)
            self.differing[name] = (outcome, tables)
        how = f"; {stopped}" if stopped else "".join(f"; {'.'.join(table)}: {how}" for table, how in differing.items())
        self._tell(name, f"{count} tables {settled_s:.1f} s later, {more}{how}")

    def leave_out(self, name: str, reason: str) -> None:
        self._outcomes[name] = NOT_RUN
        self.differing[name] = (NOT_RUN, frozenset())
        self._tell(name, reason)

    def _tell(self, name: str, how: str) -> None:
        elapsed = int(time.monotonic() - self._begun)
        place = f"{elapsed // 60}:{elapsed % 60:02d}  {len(self._outcomes)} of {self._total}  {name}"
        print(f"{place}: {self._outcomes[name]}; {how}", flush=True)

    def counts(self) -> dict[str, int]:
        found = list(self._outcomes.values())
        return {outcome: found.count(outcome) for outcome in (EQUAL, DIFFERENT, STOPS, NOT_RUN)}
