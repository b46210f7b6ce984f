"""What a real target says of statements that take long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from pgsluice.shared.errors import Cause
from pgsluice.shared.process.pulse import Pulse
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.target import statement_watch
from pgsluice.worker.sinks.postgres.target.connection import Connection, connect
from pgsluice.worker.sinks.postgres.target.statement_watch import StatementWatch
from tests.logged import fields_of
from tests.servers import Database, PostgresServer
from tests.servers.child import HOST
from tests.servers.losing_proxy import LosingProxy
from tests.waiting import wait_until


class Watched:
    """A session at the target whose statements are watched, on a thread of its own."""

    def __init__(self, settings: PostgresSinkSettings) -> None:
        self.settings = settings
        self.pulse = Pulse()
        self.watch = StatementWatch(settings)
        self.watch.pulse = self.pulse
        self.connection: Connection = connect(settings, "watched")

    @contextmanager
    def running(self, statement: str) -> Iterator[threading.Thread]:
        """It is cancelled at the end, when it still runs."""
        thread = threading.Thread(target=self._run, args=[statement], daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            self.connection.cancel()
            thread.join(10)

    def _run(self, statement: str) -> None:
        with self.watch.over(self.connection):
            try:
                self.connection.execute(statement.encode())
            except psycopg.errors.QueryCanceled:
                return

    def moves(self) -> bool:
        before = self.pulse.progressed_at
        return bool(wait_until(lambda: self.pulse.progressed_at > before, what="progress"))


@pytest.fixture
def watched(target_database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(statement_watch, "LOOK_INTERVAL_S", 0.05)
    target_database.execute("CREATE TABLE t (id integer)")
    session = Watched(
        PostgresSinkSettings(
            target_database.settings,
            sync_schema=True,
            disable_foreign_keys=False,
            sync_sequences=False,
            lock_timeout_s=0,
            on_missing_row="count",
        )
    )
    yield session
    session.watch.close()
    session.connection.close()


def test_a_statement_that_the_target_works_on_moves(watched: Watched) -> None:
    with watched.running("SELECT count(*) FROM generate_series(1, 1000000000000)") as thread:
        assert watched.moves()
        assert watched.moves()
        assert thread.is_alive()
    assert watched.pulse.wait is None


def test_a_statement_that_waits_for_a_lock_stands_still_and_says_whose(watched: Watched, target_database: Database) -> None:
    with target_database.connect() as other:
        other.execute("BEGIN; LOCK TABLE t")
        with watched.running("INSERT INTO public.t VALUES (1)") as thread:
            wait = wait_until(lambda: watched.pulse.wait, what="a wait")
            assert (wait.cause, wait.next_attempt_at) == (Cause.LOCK, None)
            assert f"process {other.info.backend_pid} holds" in wait.reason
            stood_at, looks = watched.pulse.progressed_at, wait
            wait_until(lambda: watched.pulse.wait is not looks, what="another look")
            assert watched.pulse.progressed_at == stood_at
            assert watched.pulse.wait is not None
            assert watched.pulse.wait.since == wait.since
            other.execute("COMMIT")
            thread.join(30)
            assert not thread.is_alive()
    assert watched.pulse.wait is None
    assert watched.pulse.progressed_at > stood_at


def test_nobody_looks_when_nothing_runs(watched: Watched, target_database: Database) -> None:
    with watched.running("SELECT count(*) FROM generate_series(1, 1000000000000)"):
        assert watched.moves()
    looks = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgsluice watch'"
    wait_until(lambda: target_database.execute(looks) == [(0,)], what="the end of the last look")
    before = watched.pulse.progressed_at
    with watched.running("SELECT 1") as thread:
        thread.join(10)
    assert watched.pulse.progressed_at == before


@pytest.mark.parametrize("lost", ["the request", "the answer"])
def test_a_wait_for_an_answer_that_was_lost_is_broken_off_and_said(
    target_database: Database, postgres: PostgresServer, watched: Watched, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """On the way something acknowledges and forgets: neither the server's kernel nor ours notices."""
    target_database.execute("INSERT INTO t VALUES (1)")
    with LosingProxy(postgres.port) as proxy, target_database.connect() as other:
        address = replace(watched.settings.target, host=HOST, port=proxy.port)
        connection = connect(replace(watched.settings, target=address), "watched")
        process = connection.info.backend_pid
        connection.execute("BEGIN")
        ended: list[Exception] = []

        def update() -> None:
            with watched.watch.over(connection):
                try:
                    connection.execute("UPDATE public.t SET id = 2")
                except psycopg.OperationalError as error:
                    ended.append(error)

        other.execute("BEGIN; LOCK TABLE t")
        if lost == "the request":
            proxy.lose()
        thread = threading.Thread(target=update)
        thread.start()
        if lost == "the answer":
            wait_until(lambda: watched.pulse.wait, what="a statement that waits for the lock")
            proxy.lose()
        other.execute("COMMIT")
        thread.join(30)
        assert len(ended) == 1
        assert [fields_of(each)["process"] for each in caplog.records if "gives the connection up" in each.message] == [process]
        gone = f"SELECT FROM pg_stat_activity WHERE pid = {process}"
        wait_until(lambda: target_database.execute(gone) == [], what="the end of the server's session")
        connection.close()


def test_a_session_that_works_or_lets_its_caller_think_is_not_broken_off(watched: Watched) -> None:
    with watched.watch.over(watched.connection):
        watched.connection.execute("BEGIN")
        threading.Event().wait(0.5)
        watched.connection.execute("SELECT pg_sleep(0.5)")
        watched.connection.execute("COMMIT")
