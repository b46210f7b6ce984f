"""The contract of ``worker.sinks.sink``, kept by every sink on a real destination."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.definition import TableDefined
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.testing import Promise, counting_events
from pgsluice.testing.batch import STREAM_CREATED, apply, with_definitions, write
from pgsluice.testing.changes_builder import insert, message, table
from pgsluice.testing.changes_contract import broken_off
from pgsluice.testing.tried_batches import followed_accounts
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from pgsluice.worker.sinks.sink import Sink
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from pgsluice.worker.sinks.stdout.sink import StdoutSink
from tests.servers import Database, NatsServer
from tests.state_bucket import ensure_bucket
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, with_columns
from tests.worker.sinks.contract import AT_LEAST_ONCE, EXACTLY_ONCE, SinkContract
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.settings import worker_settings
from tests.worker.sinks.sqlite_sink import SqliteSink, SqliteTables


class StdoutDestination:
    """A file in the place of standard output."""

    def __init__(self, settings: WorkerSettings, output: Path) -> None:
        self._settings = settings
        self._output = output
        self._descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def new_sink(self) -> StdoutSink:
        return StdoutSink(self._settings, StdoutSinkSettings(line_settings()), descriptor=self._descriptor)

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
    promises = AT_LEAST_ONCE | {Promise.CATCH_UP}

    @pytest.fixture
    def destination(self, nats_server: NatsServer, group: str, tmp_path: Path) -> Iterator[StdoutDestination]:
        ensure_bucket(nats_server.settings(), group)
        destination = StdoutDestination(worker_settings(group, nats_server.settings()), tmp_path / "stdout")
        yield destination
        destination.close()


class PostgresDestination:
    """Rows of a keyless heap come back in the order in which they were inserted."""

    def __init__(self, database: Database, settings: WorkerSettings) -> None:
        self._database = database
        self._settings = settings

    def new_sink(self) -> PostgresSink:
        settings = PostgresSinkSettings(
            self._database.settings,
            sync_schema=True,
            disable_foreign_keys=False,
            sync_sequences=False,
            lock_timeout_s=30,
            on_missing_row="count",
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


class TestPostgres(SinkContract):
    kind = "postgres"
    promises = EXACTLY_ONCE | {Promise.CATCH_UP, Promise.REFUSALS}

    @pytest.fixture
    def destination(self, target_database: Database, nats_server: NatsServer, group: str) -> PostgresDestination:
        with target_database.connect() as connection:
            connection.execute("CREATE TABLE public.events (id bigint, note text)")
        return PostgresDestination(target_database, worker_settings(group, nats_server.settings()))


class SqliteDestination:
    """The file of the example of a sink that is not ours."""

    def __init__(self, path: Path, kind: type[SqliteSink] = SqliteSink) -> None:
        self._path = path
        self._kind = kind

    def new_sink(self) -> SqliteSink:
        settings = worker_settings("orders")
        return self._kind(settings, {"path": str(self._path)})

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as database:
            return database.execute(query).fetchall()

    def delivered(self) -> list[int]:
        return counting_events(self._lines())

    def accounts(self) -> dict[int, str]:
        return followed_accounts(self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for (line,) in self.rows("SELECT line FROM lines ORDER BY rowid")]


class TestSqlite(SinkContract):
    kind = "tests.worker.sinks.sqlite_sink:SqliteSink"
    promises = EXACTLY_ONCE | {Promise.CATCH_UP}

    @pytest.fixture
    def destination(self, tmp_path: Path) -> SqliteDestination:
        return SqliteDestination(tmp_path / "changes.db")


WIDER = with_columns(ID, replace(NOTE, name="remark"), column(3, "n", missing="it's 7"))
T, T_WIDER = table("public.t", "id bigint", "note text"), table("public.t", "id bigint", "remark text", "n text")
ALTERED = [
    [message(1, insert(T, b"1", b"a"))],
    [message(2, PublishedDefinition(TableDefined("ALTER TABLE", WIDER), TABLE))],
    [message(3, insert(T_WIDER, b"2", b"b", b"8"))],
    [message(4, PublishedDefinition(TableDefined("ALTER TABLE", replace(WIDER, name="u")), WIDER))],
    [message(5, insert(replace(T_WIDER, name="u"), b"3", b"c", b"9"))],
]


class TestSqliteTables(SinkContract):
    """One that is told of definitions in the driver."""

    kind = "tests.worker.sinks.sqlite_sink:SqliteTables"
    promises = EXACTLY_ONCE | {Promise.CATCH_UP}

    @pytest.fixture
    def destination(self, tmp_path: Path) -> SqliteDestination:
        return SqliteDestination(tmp_path / "changes.db", SqliteTables)

    def test_a_definition_alters_the_destination_between_the_rows_around_it(
        self, destination: SqliteDestination, sink: Sink, successor: Sink
    ) -> None:
        apply(sink, ALTERED)
        apply(sink, ALTERED)
        sink.close()
        assert successor.open().sequence == 5
        assert destination.rows("SELECT id, remark, n FROM u ORDER BY id") == [(1, "a", "it's 7"), (2, "b", "8"), (3, "c", "9")]

    def test_what_a_definition_altered_goes_with_its_batch(self, destination: SqliteDestination, sink: Sink) -> None:
        apply(sink, ALTERED[:1])
        receipts = with_definitions(sink, broken_off(write(sink, ALTERED[1:])), ALTERED[1:])
        with pytest.raises(TransientError):
            sink.commit(receipts, STREAM_CREATED)
        assert destination.rows("SELECT name FROM pragma_table_info('t')") == [("id",), ("note",)]
        apply(sink, ALTERED[1:])
        assert len(destination.rows("SELECT id, remark, n FROM u")) == 3
