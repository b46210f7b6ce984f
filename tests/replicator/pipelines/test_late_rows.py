"""Whatever begins early and commits late, after the last run the target is what the query gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import psycopg
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from pgsluice.replicator.pipelines import late_rows
from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import UsageError
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest, new_pipeline
from tests.servers import NatsServer, PostgresServer
from tests.waiting import wait_until

ROLE = "reads_only"
WRITERS = 3
ACTIONS = ("begin", "insert", "update", "commit", "rollback", "prepare", "commit prepared", "run")

Step = tuple[int, str]
"""A writer, and what it does."""

steps = st.tuples(st.integers(0, WRITERS - 1), st.sampled_from(ACTIONS))
schedules = st.lists(steps, min_size=10, max_size=40)
unhurried = settings(deadline=None, phases=(Phase.explicit, Phase.generate))  # each example is some runs on real servers


@pytest.fixture(autouse=True)
def no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or rows of the last seconds would be read again, whatever is measured. A BEGIN that was answered is shown."""
    monkeypatch.setattr(late_rows, "SLACK", "0 s")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer({"max_prepared_transactions": "10"}) as server:
        yield server


@pytest.fixture
def prepared(server: PostgresServer, nats_server: NatsServer) -> Iterator[PipelineUnderTest]:
    """On a server that takes prepared transactions."""
    with new_pipeline(server, nats_server) as pipeline:
        yield pipeline


class Writers:
    """Transactions that open, write and end as a schedule says. A row's ``updated_at`` is when its transaction began. What cannot
    be done at its moment is not done."""

    def __init__(self, pipeline: PipelineUnderTest) -> None:
        self._closing = ExitStack()
        self._connections = [self._closing.enter_context(pipeline.source.connect()) for _ in range(WRITERS)]
        self._prepared: list[str] = []
        self._next_id = 0

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *_: object) -> None:
        """All transactions end."""
        for connection in filter(_is_open, self._connections):
            connection.execute("COMMIT")
        while self._prepared:
            self._commit_prepared(self._connections[0])
        self._closing.close()

    def step(self, writer: int, action: str) -> None:
        connection = self._connections[writer]
        is_open = _is_open(connection)
        match action:
            case "begin" if not is_open:
                connection.execute("BEGIN")
            case "insert":
                self._next_id += 1
                connection.execute("INSERT INTO t (id, v) VALUES (%s, 'new')", [self._next_id])
            case "update" if not self._prepared and not any(map(_is_open, self._connections)):
                connection.execute(f"UPDATE t SET v = v || 'x', updated_at = now() WHERE id % {WRITERS} = {writer}")
            case "commit" | "rollback" if is_open:
                connection.execute(action)
            case "prepare" if is_open:
                self._prepared.append(f"p{self._next_id}_{len(self._prepared)}_{writer}")
                connection.execute(f"PREPARE TRANSACTION '{self._prepared[-1]}'")
            case "commit prepared" if self._prepared and not is_open:
                self._commit_prepared(connection)

    def _commit_prepared(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        connection.execute(f"COMMIT PREPARED '{self._prepared.pop(0)}'")


def _is_open(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    return connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE


def misses(server: PostgresServer, nats: NatsServer, schedule: Sequence[Step], *, measured: bool = True) -> bool:
    """Whether the target is not what the query gives, after the schedule and a last run when all writers are through."""
    with new_pipeline(server, nats) as pipeline:
        if not measured:
            role(pipeline)
            pipeline.change(overlap="0")
        with Writers(pipeline) as writers:
            for writer, action in schedule:
                if action == "run":
                    pipeline.run()
                else:
                    writers.step(writer, action)
        pipeline.run()
        return pipeline.merged() != pipeline.expected()


@settings(unhurried, max_examples=5)
@given(schedule=schedules)
def test_no_row_is_missed_that_commits_late(server: PostgresServer, nats_server: NatsServer, schedule: list[Step]) -> None:
    assert not misses(server, nats_server, schedule)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(unhurried, max_examples=200)
@given(schedule=schedules)
def test_no_row_is_missed_in_many_interleavings(server: PostgresServer, nats_server: NatsServer, schedule: list[Step]) -> None:
    assert not misses(server, nats_server, schedule)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_schedule_that_misses_rows_with_an_overlap_of_nothing_misses_none_when_it_is_measured(
    server: PostgresServer, nats_server: NatsServer
) -> None:
    """So the tests above can see the fault."""
    search = settings(unhurried, max_examples=100)
    schedule = find(schedules, lambda some: misses(server, nats_server, some, measured=False), settings=search)
    assert not misses(server, nats_server, schedule)


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


async def looked(pipeline: PipelineUnderTest) -> late_rows.OpenTransactions:
    source = await Source.connect(pipeline.settings.source)
    try:
        return await late_rows.look(source)
    finally:
        await source.close()


async def test_a_transaction_that_began_a_moment_ago_takes_nothing_of_the_slack(
    pipeline: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that began before it may be shown a moment later."""
    monkeypatch.setattr(late_rows, "SLACK", "1 hour")
    with pipeline.source.connect(autocommit=False) as young:
        young.execute("SELECT 1")
        horizon_s = (await looked(pipeline)).horizon_s
        assert horizon_s is not None
        assert horizon_s >= 3600


@pytest.mark.parametrize("unit", ["milliseconds", "second"])
def test_a_late_row_is_read_whose_time_is_that_of_its_transaction_without_the_fraction(
    pipeline: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    """So it seems to be older than every transaction that was open."""
    monkeypatch.setattr(late_rows, "SLACK", "1 s")
    pipeline.source.execute(f"ALTER TABLE t ALTER updated_at SET DEFAULT date_trunc('{unit}', now())")
    pipeline.source.execute("INSERT INTO t VALUES (2, 'in time')")
    pipeline.run()
    with pipeline.source.connect(autocommit=False) as late:
        is_truncated = f"SELECT now() > date_trunc('{unit}', now())"
        while late.execute(is_truncated).fetchone() != (True,):
            late.rollback()
        late.execute("INSERT INTO t VALUES (1, 'late')")
        is_old = "SELECT clock_timestamp() > now() + interval '1.1 s'"
        wait_until(lambda: late.execute(is_old).fetchone() == (True,), what="a transaction older than the slack")
        pipeline.source.execute("UPDATE t SET updated_at = now()")
        pipeline.run()
        late.commit()
    pipeline.run()
    assert pipeline.merged() == pipeline.expected()


async def test_when_the_oldest_transaction_began_is_not_known_while_a_session_hides_it(pipeline: PipelineUnderTest) -> None:
    with pipeline.source.connect() as hiding:
        hiding.execute("SET track_activities = off")
        found = await looked(pipeline)
        assert (found.unseen, found.horizon_s) == (1, None)


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
    with pytest.raises(UsageError, match="cannot be measured"):
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
