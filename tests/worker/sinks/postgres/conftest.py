"""A sink on a database of its own, driven as the worker drives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.testing.changes_builder import AnyChange, message
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from pgsluice.worker.sinks.postgres.writer import INLINE_BYTES, MOST_STAGES
from pgsluice.worker.sinks.sink import Applied, Receipt
from tests.servers import Database
from tests.worker.sinks.settings import worker_settings

NO_NATS = NatsSettings.of_url("")

Changes = Sequence[AnyChange]


class Target:
    """The target database and one worker that writes to it."""

    def __init__(
        self,
        database: Database,
        inline_bytes: int,
        most_stages: int = MOST_STAGES,
        *,
        hands_over: bool = False,
        policies: Mapping[str, str] | None = None,
        max_dead_letters: int = 1000,
    ) -> None:
        self.database = database
        self.hands_over = hands_over
        self.policies = dict(policies or {})
        self.max_dead_letters = max_dead_letters
        self.inline_bytes = inline_bytes
        self.most_stages = most_stages
        self.settings = PostgresSinkSettings(
            database.settings,
            sync_schema=True,
            disable_foreign_keys=False,
            sync_sequences=False,
            lock_timeout_s=30,
            on_missing_row="count",
        )
        self.user: str | None = None
        """The worker's role; the superuser when None."""
        self.sequence = 0
        self._sinks: list[PostgresSink] = []
        self._connection = database.connect()
        self._sink: PostgresSink | None = None

    @property
    def sink(self) -> PostgresSink:
        if self._sink is None:
            self._sink = self.new_sink()
            self._sink.open()
        return self._sink

    def new_sink(self, name: str = "postgres", **settings: Any) -> PostgresSink:
        """Another sink for the same target, not open."""
        chosen = worker_settings("orders", name=name)
        worker = replace(chosen, ddl_policy=self.policies, max_dead_letters=self.max_dead_letters)
        sink = PostgresSink(
            worker, replace(self.settings, **settings), self.inline_bytes, self.most_stages, hands_over=self.hands_over
        )
        self._sinks.append(sink)
        return sink

    def write_as(self, user: str | None, **settings: Any) -> None:
        """From now on, with these settings of the sink."""
        self.user = user
        if user:
            self.execute(f"GRANT CREATE ON SCHEMA public TO {user}")
        database = replace(self.settings.target, user=user) if user else self.settings.target
        self.settings = replace(self.settings, target=database, **settings)

    def make(self, statements: str) -> None:
        """Runs them as the worker's role, which owns what they make."""
        if self.user:
            self.execute(f"SET ROLE {self.user}")
        self.execute(statements)
        self.execute("RESET ROLE")

    def messages(self, *changes: Changes) -> list[MessageChanges]:
        """The next messages of the stream, one transaction each."""
        first = self.sequence + 1
        self.sequence += len(changes)
        return [message(sequence, *each) for sequence, each in enumerate(changes, first)]

    def write(self, *partitions: Sequence[Changes]) -> list[Receipt]:
        """What tasks make of the next batch: partitions of transactions of changes."""
        return write(self.sink, [self.messages(*partition) for partition in partitions])

    def apply(self, *changes: AnyChange) -> Applied:
        """A batch of one transaction."""
        return self.apply_partitions([changes])

    def apply_partitions(self, *partitions: Sequence[Changes]) -> Applied:
        return self.commit([self.messages(*partition) for partition in partitions])

    def commit(self, batch: Sequence[Sequence[MessageChanges]]) -> Applied:
        """Writes the batch as often as the sink asks for it; raises RejectedChanges when it names changes."""
        while True:
            try:
                return self.sink.commit(write(self.sink, batch), STREAM_CREATED)
            except WriteAgain:
                continue
            except RejectedChanges:
                self.sink.rejected()
                raise

    def execute(self, statement: str) -> None:
        self._connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query.encode()).fetchall()

    def table(self, schema: str, name: str) -> list[tuple[Any, ...]]:
        """All rows as text, sorted."""
        query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, name))
        with psycopg.ClientCursor(self._connection) as cursor:
            rows = cursor.execute(query).fetchall()
        return sorted((tuple(None if value is None else str(value) for value in row) for row in rows), key=repr)

    def stages(self) -> list[str]:
        found = self.rows(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'pgsluice' AND c.relkind = 'r' AND c.relname ~ '^(stage|parked)_'"
        )
        return [name for (name,) in found]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._connection.close()


@pytest.fixture
def new_target(target_database: Database) -> Iterator[Callable[..., Target]]:
    """Makes a target whose receipts carry so many bytes, and whose batches have so many staging tables."""
    made: list[Target] = []

    def make(inline_bytes: int = INLINE_BYTES, most_stages: int = MOST_STAGES, **more: Any) -> Target:
        made.append(Target(target_database, inline_bytes, most_stages, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Way(Enum):
    """How rows reach the merge. Once they are fetched, those that were handed over are those of a receipt (``merge.Merge``), so
    few tests have them too; the rest about handing over is in ``own/test_handed_text.py``."""

    IN_THE_RECEIPT = "in the receipt"
    STAGED = "staged"
    HANDED_OVER = "handed over"


def in_ways(*ways: Way) -> pytest.MarkDecorator:
    """For tests whose target takes rows otherwise than most batches' go."""
    return pytest.mark.parametrize("way", ways, ids=lambda way: way.value)


EVERY_WAY = in_ways(*Way)
WITH_AND_WITHOUT_STAGES = in_ways(Way.IN_THE_RECEIPT, Way.STAGED)
"""For what tasks do themselves when they stage, and for rows that are inserted: without stages they are copied right into their
table."""


@pytest.fixture
def way() -> Way:
    """Unless a test says otherwise (``in_ways``)."""
    return Way.IN_THE_RECEIPT


@pytest.fixture
def target(way: Way, new_target: Callable[..., Target]) -> Target:
    return new_target(INLINE_BYTES if way is Way.IN_THE_RECEIPT else 0, hands_over=way is Way.HANDED_OVER)


@pytest.fixture(params=["superuser", "ordinary role"])
def target_of_each_role(request: pytest.FixtureRequest, new_target: Callable[..., Target]) -> Target:
    """With what target-disable-foreign-keys is by default, for a role that may disable them and for one that may not."""
    made = new_target()
    user = request.getfixturevalue("ordinary_role") if request.param == "ordinary role" else None
    made.write_as(user, disable_foreign_keys=None)
    return made


@pytest.fixture
def worker_role(target: Target) -> Iterator[str]:
    """The role of ``target``'s worker from now on; it owns what is the worker's own, and no table."""
    name = f"pgsluice_{target.database.dbname}"
    target.execute(
        f"CREATE ROLE {name} LOGIN; DROP SCHEMA IF EXISTS pgsluice CASCADE; CREATE SCHEMA pgsluice AUTHORIZATION {name}"
    )
    target.settings = replace(target.settings, target=replace(target.settings.target, user=name))
    yield name
    target.close()
    with target.database.connect() as connection:
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())
