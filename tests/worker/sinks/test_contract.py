"""The contract of ``worker.sinks.sink``, kept by every sink on a real destination."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from pgsluice.worker.sinks.stdout.sink import StdoutSink
from tests.servers import Database, NatsServer
from tests.state_bucket import ensure_bucket
from tests.worker.sinks.contract import SinkContract
from tests.worker.sinks.rejecting_contract import RejectingSinkContract
from tests.worker.sinks.settings import worker_settings
from tests.worker.sinks.sqlite_sink import SqliteSink
from tests.worker.sinks.tried_batches import followed_accounts


def counting_events(lines: Iterable[dict[str, Any]]) -> list[int]:
    """The ids of the events in ``json_lines`` objects, but for rows copied before their table was begun anew."""
    counting: list[dict[str, Any]] = []
    for line in lines:
        if line["operation"] == "RESTART":
            counting = [other for other in counting if (other["operation"], other["table"]) != ("READ", line["table"])]
        else:
            counting.append(line)
    return [line["after"]["id"] for line in counting if line["table"] == "events"]


class StdoutDestination:
    """A file in the place of standard output."""

    is_exactly_once = False

    def __init__(self, settings: WorkerSettings, output: Path) -> None:
        self._settings = settings
        self._output = output
        self._descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def new_sink(self) -> StdoutSink:
        return StdoutSink(self._settings, StdoutSinkSettings(transactions=False, shape="json"), descriptor=self._descriptor)

    def delivered(self) -> list[int]:
        return counting_events(self._lines())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._output.read_bytes().splitlines()]

    def close(self) -> None:
        os.close(self._descriptor)


class TestStdout(SinkContract):
    kind = "stdout"

    @pytest.fixture
    def destination(self, nats_server: NatsServer, group: str, tmp_path: Path) -> Iterator[StdoutDestination]:
        ensure_bucket(nats_server.settings(), group)
        destination = StdoutDestination(worker_settings(group, nats_server.settings()), tmp_path / "stdout")
        yield destination
        destination.close()


class PostgresDestination:
    """Rows of a keyless heap come back in the order in which they were inserted."""

    is_exactly_once = True

    def __init__(self, database: Database, settings: WorkerSettings) -> None:
        self._database = database
        self._settings = settings

    def new_sink(self) -> PostgresSink:
        settings = PostgresSinkSettings(
            self._database.settings, sync_schema=True, disable_foreign_keys=False, sync_sequences=False, lock_timeout_s=30
        )
        return PostgresSink(self._settings, settings)

    def delivered(self) -> list[int]:
        with self._database.connect() as connection:
            return [row[0] for row in connection.execute("SELECT id FROM public.events ORDER BY ctid").fetchall()]

    def accounts(self) -> dict[int, str]:
        return dict(self._database.execute("SELECT id, note FROM public.accounts"))

    def refuse(self, *events: int) -> None:
        for event in events:
            self._database.execute(f"ALTER TABLE public.events ADD CHECK (id <> {event})")


class TestPostgres(RejectingSinkContract):
    kind = "postgres"

    @pytest.fixture
    def destination(self, target_database: Database, nats_server: NatsServer, group: str) -> PostgresDestination:
        with target_database.connect() as connection:
            connection.execute("CREATE TABLE public.events (id bigint, note text)")
        return PostgresDestination(target_database, worker_settings(group, nats_server.settings()))


class SqliteDestination:
    """The file of the example of a sink that is not ours."""

    is_exactly_once = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def new_sink(self) -> SqliteSink:
        settings = worker_settings("orders")
        return SqliteSink(settings, {"path": str(self._path)})

    def delivered(self) -> list[int]:
        return counting_events(self._lines())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self._path)) as database:
            return [json.loads(line) for (line,) in database.execute("SELECT line FROM lines ORDER BY rowid")]


class TestSqlite(SinkContract):
    kind = "tests.worker.sinks.sqlite_sink:SqliteSink"

    @pytest.fixture
    def destination(self, tmp_path: Path) -> SqliteDestination:
        return SqliteDestination(tmp_path / "changes.db")
