"""A target whose table of locks is small: batches over many tables must not need more locks than their rows do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from psycopg.errors import OutOfMemory

from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError
from pgsluice.testing.batch import STREAM_CREATED, write, write_partition
from pgsluice.testing.changes_builder import Change, insert, table, update
from pgsluice.worker.sinks.postgres.attempts import LOCK_TABLE_ATTEMPTS, TASK_LOCK_ATTEMPTS
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Receipt
from tests.servers import PostgresServer
from tests.worker.sinks.postgres.conftest import Target

TABLES = [table(f"public.t{number}", "id bigint", "note text") for number in range(30)]
PARTITIONS = 6


@pytest.fixture(scope="module")
def small_server() -> Iterator[PostgresServer]:
    """Some 350 locks for all sessions together."""
    settings = {
        "max_locks_per_transaction": "10",
        "max_connections": "10",
        "max_wal_senders": "0",
        "max_worker_processes": "1",
        "autovacuum_worker_slots": "1",
        "wal_level": "replica",
    }
    with PostgresServer(settings) as server:
        yield server


@pytest.fixture
def small_target(small_server: PostgresServer, group: str) -> Iterator[Target]:
    """Every piece of a batch is staged."""
    database = small_server.create_database(group)
    target = Target(database, inline_bytes=0)
    yield target
    target.close()
    database.drop()


def row_count(target: Target) -> int:
    return sum(target.rows(f"SELECT count(*) FROM {each.name}")[0][0] for each in TABLES)


@contextmanager
def all_locks_but(target: Target, free: int) -> Iterator[None]:
    """Another session holds them until the end of the block."""
    with target.database.connect() as other:
        with suppress(OutOfMemory):
            for number in range(100_000):
                other.execute("SELECT pg_advisory_lock(%s)", [number])
        for kept in range(number - free, number):
            other.execute("SELECT pg_advisory_unlock(%s)", [kept])
        yield
        other.execute("SELECT pg_advisory_unlock_all()")  # a session that is only closed keeps them until its process has ended


def test_a_transaction_over_many_tables_is_applied_at_once_and_leaves_no_stage(small_target: Target) -> None:
    for each in TABLES:
        small_target.execute(f"CREATE TABLE {each.name} (id bigint PRIMARY KEY, note text)")
    small_target.apply_partitions(
        *([[insert(each, b"%d" % part, b"new") for each in TABLES]] for part in range(PARTITIONS)),
    )
    assert row_count(small_target) == len(TABLES) * PARTITIONS
    assert small_target.stages() == []
    small_target.apply_partitions(
        *([[update(each, b"%d" % part, b"changed") for each in TABLES]] for part in range(PARTITIONS)),
    )
    assert small_target.rows("SELECT DISTINCT note FROM t29") == [("changed",)]
    assert small_target.stages() == []


def test_a_hundred_tables_in_one_transaction_are_applied_with_fewer_stages_at_the_second_attempt(small_target: Target) -> None:
    tables = [table(f"public.wide{number}", "id bigint", "note text") for number in range(100)]
    for each in tables:
        small_target.execute(f"CREATE TABLE {each.name} (id bigint PRIMARY KEY, note text)")
    changes: list[list[list[Change]]] = [[[insert(each, b"%d" % part, b"new") for each in tables]] for part in range(PARTITIONS)]
    batch = [small_target.messages(*partition) for partition in changes]
    small_target.sink.open()
    with suppress(TransientError):
        small_target.commit(batch)
    small_target.commit(batch)
    assert small_target.sink.open().sequence == PARTITIONS
    assert small_target.rows("SELECT count(*) FROM wide99") == [(PARTITIONS,)]
    assert small_target.stages() == []


def test_a_worker_starts_however_many_stages_were_left(small_target: Target) -> None:
    small_target.sink.open()
    prefix = small_target.sink.writer().names.prefix
    for number in range(200):
        small_target.execute(f"CREATE UNLOGGED TABLE pgsluice.{prefix}1_abc_{number} (c1 bigint, c2 text)")
    small_target.new_sink().open()
    assert small_target.stages() == []


def test_a_full_table_of_locks_ends_the_worker_with_the_setting_to_raise(small_target: Target) -> None:
    batch = [small_target.messages([insert(each, b"1", b"new") for each in TABLES])]
    small_target.sink.open()
    for each in TABLES:
        small_target.execute(f"CREATE TABLE {each.name} (id bigint PRIMARY KEY, note text)")
    with all_locks_but(small_target, 10):
        for _ in range(LOCK_TABLE_ATTEMPTS - 1):
            with pytest.raises(TransientError, match="max_locks_per_transaction"):
                small_target.sink.commit(write(small_target.sink, batch), STREAM_CREATED)
        with pytest.raises(TerminalError, match=r"table of locks is full.*raise max_locks_per_transaction"):
            small_target.sink.commit(write(small_target.sink, batch), STREAM_CREATED)
    successor = small_target.new_sink()
    successor.open()
    assert successor.commit(write(successor, batch), STREAM_CREATED).sequence == 1
    assert small_target.stages() == []


def test_what_is_written_ahead_is_no_attempt_at_the_batch_in_hand(new_target: Callable[..., Target]) -> None:
    target = new_target()
    batch = [target.messages([insert(TABLES[0], b"1", b"new")])]

    def while_the_next_is_written(receipts: list[Receipt]) -> Iterator[Receipt]:
        target.sink.writer()
        yield from receipts

    target.sink.renumber(NOTHING_APPLIED)
    target.execute("DROP TABLE pgsluice.applied CASCADE")
    for attempt in range(1, TASK_LOCK_ATTEMPTS + 1):
        writer = target.sink.writer()
        assert writer.is_last == (attempt == TASK_LOCK_ATTEMPTS)
        receipts = write_partition(writer, batch[0])
        with pytest.raises(PgsluiceError):
            target.sink.commit(while_the_next_is_written(receipts), STREAM_CREATED)
