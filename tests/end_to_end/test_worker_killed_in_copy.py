"""Tables are copied once; the worker that applies the copy is killed in the middle of it, again and again."""

from __future__ import annotations

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.random_load import checksum
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

ROWS = 60_000  # 12 MB of COPY text in each table
TABLES = ("keyed", "keyless", "empty")
COPY_DEADLINE_S = 120.0
START_DEADLINE_S = 120.0


def create_tables(source: Database) -> None:
    source.execute(
        "CREATE TABLE keyed (id bigint PRIMARY KEY, note text);"
        "CREATE TABLE keyless (id bigint, note text); ALTER TABLE keyless REPLICA IDENTITY FULL;"
        "CREATE TABLE empty (id bigint PRIMARY KEY);"
        f"INSERT INTO keyed SELECT i, repeat(md5(i::text), 6) FROM generate_series(1, {ROWS}) AS i;"
        f"INSERT INTO keyless SELECT i % 100, repeat(md5(i::text), 6) FROM generate_series(1, {ROWS}) AS i"
    )


def copied_messages(target: Database) -> int:
    """Messages of the snapshot stream that are loaded, applied or not."""
    if not target.execute("SELECT to_regclass('pgsluice.pending_keys') IS NOT NULL")[0][0]:
        return 0
    return int(
        target.execute(
            "SELECT greatest((SELECT max(snapshot_sequence) FROM pgsluice.applied),"
            " (SELECT max(sequence) FROM pgsluice.copied), 0)"
        )[0][0]
    )


def has_key(target: Database) -> bool:
    return bool(target.execute("SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = 'keyed'::regclass AND indisprimary)")[0][0])


@pytest.mark.long
def test_nothing_is_doubled_or_missing_and_keys_are_built_without_any_change(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    create_tables(source_database)
    keys = configuration(group, source_database, target_database, nats_server, **{"batch-bytes": "2MiB"})
    with PgsluiceProcess("replicator", "--copy", config=keys) as replicator:
        assert replicator.wait(COPY_DEADLINE_S) == 0, replicator.log()
    with PgsluiceProcess("worker", "postgres", config=keys) as worker:
        for messages in (20, 60):
            wait_until(
                lambda least=messages: copied_messages(target_database) > least,  # type: ignore[misc]
                deadline_s=START_DEADLINE_S,
                what="copied rows at the target",
                interval_s=0.01,
            )
            worker.kill()
            worker.start()
        wait_until(lambda: has_key(target_database), deadline_s=START_DEADLINE_S, what="the keys", interval_s=0.2)
        worker.terminate()
        assert worker.wait() == 0
    for table in TABLES:
        assert checksum(target_database, table) == checksum(source_database, table)
    assert target_database.execute("SELECT copied_rows FROM pgsluice.applied") == [(2 * ROWS,)]
    assert target_database.execute("SELECT FROM pgsluice.copied") == []
