"""Source and target are equal when the replicator compresses changes, and when that is switched on and off under a worker."""

from __future__ import annotations

import pytest
from nats.js.api import StoreCompression

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.replicated_group import Group
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

TABLE = "CREATE TABLE notes (id int PRIMARY KEY, note text, at timestamptz DEFAULT now())"
RANDOM_TEXT = "(SELECT string_agg(encode(uuid_send(gen_random_uuid()), 'hex'), '') FROM generate_series(1, {mb} * 31250))"
"""Text of ``mb`` megabytes, of which compressing leaves a little more than half."""
ROWS = "SELECT id, length(note), md5(note), at FROM notes ORDER BY id"


def test_copied_rows_and_compressed_changes_of_every_size_arrive(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    modes = {"copy-and-stream": True, "stream-compression": "zstd"}
    keys = configuration(group, source_database, target_database, nats_server, **modes)
    source_database.execute(TABLE)
    source_database.execute("INSERT INTO notes SELECT n, 'copied ' || n FROM generate_series(1, 5000) n")
    with PgsluiceProcess("replicator", "--until-lsn", "current", config=keys) as replicator:
        assert replicator.wait(120) == 0, replicator.log()
    source_database.execute("INSERT INTO notes SELECT n, 'one of many ' || n FROM generate_series(10001, 30000) n")
    source_database.execute("UPDATE notes SET note = 'updated' WHERE id % 3 = 0; DELETE FROM notes WHERE id % 7 = 0")
    source_database.execute(f"INSERT INTO notes SELECT n, {RANDOM_TEXT.format(mb=1)} FROM generate_series(40001, 40003) n")
    source_database.execute(f"INSERT INTO notes VALUES (50000, repeat('x', 5000000)), (50001, {RANDOM_TEXT.format(mb=5)})")
    source_database.execute(f"UPDATE notes SET note = {RANDOM_TEXT.format(mb=3)} WHERE id = 1")
    source_database.execute("INSERT INTO notes VALUES (60000, 'small')")
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target_database.execute(ROWS) == source_database.execute(ROWS)

    replicated = Group(group, source_database, nats_server.settings())
    audit = replicated.audit()
    assert 0 < audit.compressed < audit.messages
    assert audit.chunks > 0
    assert replicated.with_broker(lambda stream, _: _compressions(stream, replicated)) == [StoreCompression.NONE] * 2


async def _compressions(stream: ChangeStream, replicated: Group) -> list[str | None]:
    """Of both streams, as JetStream has them."""
    async with connected(replicated.nats, "test") as client:
        names = (stream.name, SnapshotStream(client, replicated.names).name)
    return [(await stream.configuration_of(name)).compression for name in names]


@pytest.mark.long
def test_a_worker_goes_on_while_compression_is_switched_on_and_off(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, target_database, nats_server)
    source_database.execute(TABLE)
    succeed(replicate(keys))
    replicated = Group(group, source_database, nats_server.settings())
    with PgsluiceProcess("worker", "postgres", config=keys) as worker:
        for start, compression in enumerate(("none", "zstd", "none", "zstd", "s2"), start=1):
            compressed = replicated.audit().compressed
            with PgsluiceProcess("replicator", f"--stream-compression={compression}", config=keys) as replicator:
                source_database.execute(f"INSERT INTO notes SELECT n, 'a note' FROM generate_series({start}000, {start}999) n")
                source_database.execute(f"UPDATE notes SET note = 'changed by {start}' WHERE id % 10 = {start}")
                _wait_until_applied(source_database, target_database, compression)
                source_database.execute(f"INSERT INTO notes VALUES ({start}, {RANDOM_TEXT.format(mb=2)})")
                _wait_until_applied(source_database, target_database, compression)
                replicator.terminate()
                assert replicator.wait() == 0, replicator.log()
            assert (replicated.audit().compressed > compressed) == (compression == "zstd")
        worker.terminate()
        assert worker.wait() == 0, worker.log()
    audit = replicated.audit()
    assert audit.compressed < audit.messages


def _wait_until_applied(source: Database, target: Database, compression: str) -> None:
    expected = source.execute(ROWS)
    wait_until(
        lambda: _rows(target) == expected,
        deadline_s=60,
        what=f"rows published with {compression} are applied",
        interval_s=0.2,
    )


def _rows(target: Database) -> list[tuple[object, ...]]:
    """None of them while the worker has not made the table."""
    return target.execute(ROWS) if target.execute("SELECT to_regclass('notes')") != [(None,)] else []
