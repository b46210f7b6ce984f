"""Every start compares source, stream and records, and goes on only when they agree."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from pgsluice.console.drop import run as drop
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import GROUP_KEY, REPLICATOR_KEY, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.settings import DropSettings
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.wire.message import MessageHeaders
from tests.replicated_group import Group
from tests.servers import NatsServer, PostgresServer
from tests.waiting import wait_until


def test_what_was_committed_between_two_runs_is_published_once(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 5000) n")
    replication.replicate()
    replication.source.execute("UPDATE t SET v = 'b' WHERE id <= 10")
    replication.source.execute("TRUNCATE t")
    replication.replicate()
    replication.replicate()
    audit = replication.audit()
    assert audit.rows == {"public.t insert": 5000, "public.t update": 10, "public.t truncate": 1}
    assert audit.is_settled
    assert replication.record(REPLICATOR_KEY)["stream_sequence"] == replication.stream_state().last_sequence


def test_nothing_is_published_of_a_transaction_that_rolled_back(replication: Group) -> None:
    replication.replicate()
    with replication.source.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        connection.execute("SAVEPOINT s")
        connection.execute("INSERT INTO t VALUES (2, 'b')")
        connection.execute("ROLLBACK TO s")
        connection.commit()
        connection.execute("INSERT INTO t VALUES (3, 'c')")
        connection.rollback()
    replication.replicate()
    assert replication.audit().rows == {"public.t insert": 1}


def test_interleaved_transactions_are_published_in_commit_order(replication: Group) -> None:
    replication.replicate()
    with replication.source.connect(autocommit=False) as early, replication.source.connect(autocommit=False) as late:
        early.execute("INSERT INTO t VALUES (1, 'a')")
        late.execute("INSERT INTO t VALUES (2, 'b')")
        late.commit()
        replication.replicate()
        early.execute("INSERT INTO t VALUES (3, 'c')")
        early.commit()
    replication.replicate()
    assert replication.audit().rows == {"public.t insert": 3}


def test_only_transactions_before_until_lsn_are_published(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    [(lsn,)] = replication.source.execute("SELECT pg_current_wal_insert_lsn()::text")
    replication.source.execute("INSERT INTO t VALUES (2, 'b')")
    replication.replicate(until_lsn=lsn)
    assert replication.audit().changes == 1
    replication.replicate()
    assert replication.audit().changes == 2


def test_a_row_of_20_megabytes_travels_in_chunks(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    replication.source.execute("INSERT INTO t VALUES (1, repeat('0123456789abcdef', 20 * 65536)), (2, 'small')")
    replication.replicate()
    audit = replication.audit()
    assert (audit.changes, audit.abandoned_chunks) == (2, 0)
    assert audit.chunks >= 20


def test_an_idle_publication_beside_a_busy_database_lets_the_slot_advance(replication: Group) -> None:
    replication.replicate()
    before = replication.confirmed_lsn()
    replication.source.server.connect().execute("CREATE TABLE IF NOT EXISTS busy AS SELECT generate_series(1, 10000)")
    replication.replicate()
    after = replication.confirmed_lsn()
    assert after > before
    assert replication.record(REPLICATOR_KEY)["flushed_lsn"] == after
    assert replication.stream_state().last_sequence == 0


def test_a_stream_that_was_made_again_stops_the_start(replication: Group) -> None:
    replication.replicate()
    replication.with_broker(lambda stream, _: stream.delete())
    with pytest.raises(TerminalError, match="was deleted and created again"):
        replication.replicate()


def test_a_stream_that_was_emptied_stops_the_start(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    replication.replicate()
    last_sequence = replication.stream_state().last_sequence
    replication.with_broker(lambda stream, _: stream.purge_up_to(last_sequence))
    with pytest.raises(TerminalError, match="was emptied"):
        replication.replicate()


def test_a_broker_that_lost_acknowledged_messages_stops_the_start(replication: Group) -> None:
    replication.replicate()

    async def claim_more(_: ChangeStream, bucket: StateBucket) -> None:
        record = await bucket.read(REPLICATOR_KEY, ReplicatorRecord)
        assert record is not None
        await bucket.put(REPLICATOR_KEY, replace(record.value, stream_sequence=17))

    replication.with_broker(claim_more)
    with pytest.raises(TerminalError, match="had acknowledged 17: the broker lost data"):
        replication.replicate()


def test_a_slot_that_somebody_moved_stops_the_start(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    replication.source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [replication.names.slot])
    with pytest.raises(TerminalError, match="another client moved or recreated the slot"):
        replication.replicate()


def test_a_slot_that_was_recreated_stops_the_start(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    replication.source.execute("SELECT pg_drop_replication_slot(%s)", [replication.names.slot])
    replication.source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [replication.names.slot])
    with pytest.raises(TerminalError, match="another client moved or recreated the slot"):
        replication.replicate()


def test_a_slot_that_is_gone_stops_the_start(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("SELECT pg_drop_replication_slot(%s)", [replication.names.slot])
    with pytest.raises(TerminalError, match=r"is gone.*pgsluice drop"):
        replication.replicate()


def test_a_slot_that_nats_knows_nothing_of_stops_the_start(replication: Group) -> None:
    replication.source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [replication.names.slot])
    for _ in range(2):
        with pytest.raises(TerminalError, match="NATS knows nothing of group"):
            replication.replicate()
    assert replication.source.execute("SELECT FROM pg_publication") == []


def test_a_publication_that_was_recreated_stops_the_start(replication: Group) -> None:
    replication.replicate()
    replication.source.execute(f"DROP PUBLICATION {replication.names.publication}")
    with pytest.raises(TerminalError, match="was dropped while the slot needs it"):
        replication.replicate()
    replication.source.execute(f"CREATE PUBLICATION {replication.names.publication} FOR TABLE t")
    with pytest.raises(TerminalError, match="was dropped and created again"):
        replication.replicate()


@pytest.mark.parametrize(("field", "value", "message"), [("system_id", "17", "of system 17"), ("timeline", 9, "from timeline 9")])
def test_another_source_or_timeline_stops_the_start(replication: Group, field: str, value: object, message: str) -> None:
    replication.replicate()

    async def bind_elsewhere(_: ChangeStream, bucket: StateBucket) -> None:
        record = await bucket.get(GROUP_KEY)
        assert record is not None
        await bucket.put(GROUP_KEY, orjson.loads(record.value) | {field: value})

    replication.with_broker(bind_elsewhere)
    with pytest.raises(TerminalError, match=message):
        replication.replicate()


def test_a_lost_slot_stops_the_start(group: str, nats_server: NatsServer) -> None:
    with PostgresServer({"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}) as server:
        database = server.create_database("source")
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        replication = Group(group, database, nats_server.settings())
        replication.replicate()
        for _ in range(6):
            database.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1, repeat('x', 1000) FROM t")
            database.execute("SELECT pg_switch_wal()")
        database.execute("CHECKPOINT")
        with pytest.raises(TerminalError, match=r"is lost \(wal_removed\).*max_slot_wal_keep_size"):
            replication.replicate()


def test_a_slot_that_was_lost_because_nobody_read_it_is_told_with_what_to_set(group: str, nats_server: NatsServer) -> None:
    with PostgresServer({"idle_replication_slot_timeout": "1s"}) as server:
        database = server.create_database("source")
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        replication = Group(group, database, nats_server.settings())
        replication.replicate()

        def is_lost() -> bool:
            database.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1, 'a' FROM t; CHECKPOINT")
            return database.execute("SELECT invalidation_reason FROM pg_replication_slots") == [("idle_timeout",)]

        wait_until(is_lost, what="the loss of the slot")
        with pytest.raises(TerminalError, match=r"is lost \(idle_timeout\).*set idle_replication_slot_timeout to 0"):
            replication.replicate()


def test_groups_whose_names_differ_in_dashes_only_are_refused(replication: Group) -> None:
    replication.replicate()
    other = Group(replication.name.replace("-", "_"), replication.source, replication.nats)
    with pytest.raises(UsageError, match="belongs to group"):
        other.replicate()


def test_drop_removes_everything_and_may_be_repeated(replication: Group) -> None:
    replication.replicate()
    settings = DropSettings(replication.name, replication.settings().log, replication.nats, replication.source.settings)
    with pytest.raises(UsageError, match="belongs to group"):
        drop(replace(settings, group=replication.name.replace("-", "_")))
    drop(settings)
    drop(settings)
    assert replication.source.execute("SELECT FROM pg_publication") == []
    assert replication.source.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [replication.names.slot]) == []
    assert replication.with_broker(lambda stream, _: stream.state()) is None
    assert replication.with_broker(lambda _, bucket: bucket.exists()) is False


def test_a_message_says_what_it_holds(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    replication.replicate()
    message = replication.last_message()
    headers = MessageHeaders.decode(message.headers)
    assert (headers.first.ordinal, headers.last.ordinal) == (1, 2)
    assert headers.settled == message.sequence == 1
    assert headers.total_bytes == len(message.data)


def test_only_what_no_other_replication_wrote_is_published_with_origin_none(replication: Group) -> None:
    replication.replicate(origin="none")
    with replication.source.connect() as connection:
        connection.execute("SELECT pg_replication_origin_create('elsewhere')")
        connection.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
        connection.execute("INSERT INTO t VALUES (1, 'from elsewhere')")
        connection.execute("SELECT pg_replication_origin_session_reset()")
        connection.execute("SELECT pg_replication_origin_drop('elsewhere')")
        connection.execute("INSERT INTO t VALUES (2, 'from here')")
    replication.replicate(origin="none")
    assert replication.audit().rows == {"public.t insert": 1}
    with pytest.raises(UsageError, match="was started with origin: none, not with any"):
        replication.replicate()
