"""Whatever begins early and commits late, after the last run the target is what the query gives."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from pgsluice.replicator.pipelines import late_rows
from pgsluice.shared.errors import UsageError
from tests.replicator.pipelines.pipeline_under_test import TABLE, PipelineUnderTest
from tests.servers import NatsServer, PostgresServer

ROLE = "reads_only"
WRITERS = 3
STEPS = 40


@pytest.fixture(autouse=True)
def no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or rows of the last seconds would be read again, whatever is measured. A BEGIN that was answered is shown."""
    monkeypatch.setattr(late_rows, "SLACK", "0 s")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer({"max_prepared_transactions": "10"}) as server:
        yield server


@pytest.fixture
def prepared(server: PostgresServer, nats_server: NatsServer, group: str) -> PipelineUnderTest:
    """On a server that takes prepared transactions."""
    source = server.create_database(f"source_{uuid.uuid4().hex[:12]}")
    source.execute(TABLE)
    return PipelineUnderTest(group, source, nats_server)


class Writers:
    """Transactions that open, write and end in any order. A row's ``updated_at`` is when its transaction began."""

    def __init__(self, pipeline: PipelineUnderTest, choices: random.Random, *, prepares: bool) -> None:
        self._pipeline = pipeline
        self._choices = choices
        self._prepares = prepares
        self._closing = ExitStack()
        self._connections = [self._closing.enter_context(pipeline.source.connect()) for _ in range(WRITERS)]
        self._committer = self._closing.enter_context(pipeline.source.connect())
        self._prepared: list[str] = []
        self._next_id = 0

    def step(self) -> None:
        connection = self._choices.choice(self._connections)
        match self._choices.choice(["begin", "insert", "update", "end", "prepared"]):
            case "begin" if not _is_open(connection):
                connection.execute("BEGIN")
            case "insert":
                self._next_id += 1
                connection.execute("INSERT INTO t (id, v) VALUES (%s, 'new')", [self._next_id])
            case "update" if not _is_open(connection) and not self._prepared and not any(map(_is_open, self._connections)):
                connection.execute(f"UPDATE t SET v = v || 'x', updated_at = now() WHERE id % 3 = {self._choices.randrange(3)}")
            case "end" if _is_open(connection):
                self._end(connection)
            case "prepared" if self._prepared:
                self._committer.execute(f"COMMIT PREPARED '{self._prepared.pop(0)}'")

    def end_all(self) -> None:
        for connection in filter(_is_open, self._connections):
            connection.execute("COMMIT")
        for name in self._prepared:
            self._committer.execute(f"COMMIT PREPARED '{name}'")
        self._closing.close()

    def _end(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        kind = self._choices.choice(["COMMIT", "COMMIT", "ROLLBACK", "PREPARE"])
        if kind == "PREPARE" and self._prepares:
            name = f"p{self._next_id}_{len(self._prepared)}_{id(connection)}"
            connection.execute(f"PREPARE TRANSACTION '{name}'")
            self._prepared.append(name)
        else:
            connection.execute("ROLLBACK" if kind == "ROLLBACK" else "COMMIT")


def _is_open(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    return connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE


def interleave(pipeline: PipelineUnderTest, seed: int, *, prepares: bool = False) -> None:
    """Writers and runs by chance, and a last run when all writers are through."""
    choices = random.Random(seed)
    writers = Writers(pipeline, choices, prepares=prepares)
    for _ in range(STEPS):
        writers.step()
        if choices.random() < 0.12:
            pipeline.run()
    writers.end_all()
    pipeline.run()


@pytest.mark.parametrize("seed", range(3))
def test_no_row_is_missed_that_commits_late(prepared: PipelineUnderTest, seed: int) -> None:
    interleave(prepared, seed, prepares=True)
    assert prepared.merged() == prepared.expected()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 100))
def test_no_row_is_missed_in_many_interleavings(prepared: PipelineUnderTest, seed: int) -> None:
    interleave(prepared, seed, prepares=True)
    assert prepared.merged() == prepared.expected()


def late_row(pipeline: PipelineUnderTest) -> None:
    """A run between a transaction's begin and its commit, another row that commits before the run, and a last run."""
    with pipeline.source.connect(autocommit=False) as late:
        late.execute("INSERT INTO t VALUES (1, 'late')")
        pipeline.source.execute("INSERT INTO t VALUES (2, 'in time')")
        pipeline.run()
        late.commit()
    pipeline.run()


def test_a_row_that_commits_late_is_read_by_the_next_run(pipeline: PipelineUnderTest) -> None:
    late_row(pipeline)
    assert pipeline.merged() == pipeline.expected()


def test_without_measuring_and_without_an_overlap_it_is_missed(pipeline: PipelineUnderTest) -> None:
    """So the tests above can see the fault."""
    role(pipeline)
    pipeline.change(overlap="0")
    late_row(pipeline)
    assert pipeline.merged().keys() == {b"2"}


def test_a_role_that_cannot_measure_needs_an_overlap(pipeline: PipelineUnderTest) -> None:
    role(pipeline)
    with pytest.raises(UsageError, match="pg_read_all_stats"):
        pipeline.run()
    pipeline.change(overlap="10 minutes")
    late_row(pipeline)
    assert pipeline.merged() == pipeline.expected()


def test_a_prepared_transaction_holds_the_border(prepared: PipelineUnderTest) -> None:
    with prepared.source.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, 'late')")
        writer.execute("PREPARE TRANSACTION 'late'")
    prepared.source.execute("INSERT INTO t VALUES (2, 'in time')")
    prepared.run()
    assert prepared.record().reread_from == late_rows.EVERYTHING
    prepared.source.execute("COMMIT PREPARED 'late'")
    prepared.run()
    assert prepared.merged() == prepared.expected()


def test_a_column_of_another_type_needs_an_overlap(pipeline: PipelineUnderTest) -> None:
    pipeline.change(query="SELECT id, v, id AS n FROM t", incremental_key="n")
    with pytest.raises(UsageError, match="nobody can measure"):
        pipeline.run()
    pipeline.change(overlap="5")
    pipeline.source.execute("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 20) n WHERE n <> 17")
    pipeline.run()
    pipeline.source.execute("INSERT INTO t VALUES (17, 'late')")
    assert pipeline.run().rows == 6
    assert pipeline.merged() == pipeline.expected()


def role(pipeline: PipelineUnderTest) -> None:
    """From here on the pipeline reads with a role that sees no statistics of others."""
    pipeline.source.execute(
        f"DO $$ BEGIN CREATE ROLE {ROLE} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        f"GRANT SELECT ON t TO {ROLE}; GRANT EXECUTE ON FUNCTION pg_control_system() TO {ROLE}"
    )
    pipeline.change_role(ROLE)
