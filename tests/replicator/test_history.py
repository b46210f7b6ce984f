"""A source that goes back in its history, by a rollback or a failover, is noticed before anything is published or confirmed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from pgsluice.shared.broker.bucket import Entry, StateBucket
from pgsluice.shared.broker.halt import HALT_KEY, lift_halt, note_halt
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, process_key
from pgsluice.shared.errors import HistoryError
from pgsluice.shared.wire.position import parse_lsn
from tests.replicated_group import Group
from tests.replicator.test_group_start import COPY, objects
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until

OTHER_HOST = "127.0.0.2"


def insert(source: Database, first: int, last: int) -> None:
    """Each row in a transaction of its own."""
    with source.connect() as connection:
        for number in range(first, last + 1):
            connection.execute("INSERT INTO t VALUES (%s, 'a')", [number])


def streaming(source: Database, nats_server: NatsServer, group: str) -> Group:
    """A group that has published ten rows."""
    replication = Group(group, source, nats_server.settings())
    replication.replicate()
    insert(source, 1, 10)
    replication.replicate()
    return replication


def confirmed(group: Group) -> int:
    return parse_lsn(group.confirmed_lsn())


@pytest.fixture
def source(nats_server: NatsServer) -> Iterator[Database]:
    with PostgresServer() as server:
        database = server.create_database("source")
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        yield database


@contextmanager
def rolled_back(source: Database, group: Group, lost: int) -> Iterator[Group]:
    """The group, whose source stopped with all published, published ``lost`` transactions more, and is then what it was."""
    source.server.stop()
    with source.server.copy(OTHER_HOST) as before:
        before.stop()
        source.server.start()
        insert(source, 1000, 999 + lost)
        group.replicate()
        source.server.stop()
        before.start()
        yield replace(group, source=Database(before, source.dbname))


def test_a_source_behind_what_was_published_stops_the_start_and_every_later_one(
    source: Database, nats_server: NatsServer, group: str
) -> None:
    with rolled_back(source, streaming(source, nats_server, group), lost=50) as back:
        lost_lsn = parse_lsn(back.record("replicator")["flushed_lsn"])
        insert(back.source, 2000, 2004)
        before = confirmed(back)
        with pytest.raises(HistoryError, match=r"source's WAL ends at .*went back in its history.*pgsluice drop"):
            back.replicate()
        while parse_lsn(back.source.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0]) <= lost_lsn:
            back.source.execute("INSERT INTO t SELECT max(id) + 1, repeat('x', 1000) FROM t")
        with pytest.raises(HistoryError, match=r"went back in its history.*found at .*forget --halt"):
            back.replicate()
        lift(back)
        with pytest.raises(HistoryError, match=r"the source (continues with|has another|has WAL).*its history went back"):
            back.replicate()
        assert confirmed(back) == before
        assert back.audit().changes == 60
        assert back.record(HALT_KEY)["fact"]


def test_a_start_of_a_halted_group_makes_and_writes_nothing(replication: Group) -> None:
    replication.replicate()
    replication.with_broker(lambda _, bucket: note_halt(bucket, HistoryError("it went back", "drop it")))
    made, written = objects(replication), replication.with_broker(records)
    for copy in (None, COPY):
        with pytest.raises(HistoryError, match=r"it went back \(found at .*forget --halt"):
            replication.replicate(copy=copy)
        assert (objects(replication), replication.with_broker(records)) == (made, written)


async def records(_: ChangeStream, bucket: StateBucket) -> list[Entry[bytes] | None]:
    """All but what a process tells of itself."""
    return [await bucket.get(key) for key in await bucket.keys() if key != process_key(REPLICATOR_UNIT)]


def test_a_source_that_grew_past_what_was_published_is_noticed_by_what_it_sends(
    source: Database, nats_server: NatsServer, group: str
) -> None:
    with rolled_back(source, streaming(source, nats_server, group), lost=5) as back:
        back.source.execute("INSERT INTO t SELECT n, repeat('y', 100) FROM generate_series(5000, 9000) n")
        with pytest.raises(HistoryError, match=r"the source (continues with|has WAL).*its history went back"):
            back.replicate()
        assert back.audit().changes == 15


def lift(group: Group) -> None:
    assert group.with_broker(lambda _, bucket: lift_halt(bucket))


class Pair:
    """A primary and a standby that follows it with synchronised failover slots; the standby is at another address."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.primary = stack.enter_context(PostgresServer({"hot_standby_feedback": "on"}))
        with self.primary.connect() as connection:
            connection.execute("SELECT pg_create_physical_replication_slot('standby')")
        self.source = self.primary.create_database("source")
        self.source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        self.standby: PostgresServer | None = None

    def start_standby(self) -> PostgresServer:
        self.primary.stop()
        standby = self.primary.copy(OTHER_HOST)
        self.primary.start()
        for slot in (standby.data_directory / "pg_replslot").iterdir():  # a base backup leaves them out too
            shutil.rmtree(slot)
        (standby.data_directory / "standby.signal").touch()
        conninfo = f"host={self.primary.host} port={self.primary.port} user={self.primary.user} dbname=postgres"
        standby.settings |= {
            "primary_conninfo": conninfo,
            "primary_slot_name": "standby",
            "sync_replication_slots": "on",
            "hot_standby_feedback": "on",
        }
        self.standby = self._stack.enter_context(standby)
        return standby

    def wait_for_standby(self, replication: Group) -> None:
        """Returns when the standby has replayed everything and the slot is safe there, which takes a slot that moves."""
        assert self.standby is not None
        with self.standby.connect() as standby:
            slot = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"
            numbers = iter(range(10**6, 10**7))

            def is_there() -> bool:
                self.source.execute("INSERT INTO t VALUES (%s, 'moves the slot')", [next(numbers)])
                self.source.execute("SELECT pg_log_standby_snapshot()")
                replication.replicate(failover=True)
                [(lsn,)] = self.source.execute("SELECT pg_current_wal_lsn()::text")
                replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
                wait_until(lambda: standby.execute(replayed, [lsn]).fetchone() == (True,), what="replay by the standby")
                return standby.execute(slot, [replication.names.slot]).rowcount == 1

            wait_until(is_there, deadline_s=120, what="the slot on the standby", interval_s=0.5)

    def promote(self) -> Database:
        assert self.standby is not None
        with self.standby.connect() as connection:
            connection.execute("SELECT pg_promote()")
        return Database(self.standby, self.source.dbname)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def test_a_failover_to_a_standby_that_has_everything_goes_on(pair: Pair, nats_server: NatsServer, group: str) -> None:
    replication = Group(group, pair.source, nats_server.settings())
    replication.replicate(failover=True)
    pair.start_standby()
    insert(pair.source, 1, 20)
    replication.replicate(failover=True)
    pair.wait_for_standby(replication)
    pair.primary.stop()
    promoted = replace(replication, source=pair.promote())
    insert(promoted.source, 100, 119)
    promoted.replicate(failover=True)
    [(rows,)] = promoted.source.execute("SELECT count(*) FROM t")
    assert promoted.audit().changes == rows
    assert promoted.record("group")["timeline"] == 2


def test_a_failover_to_a_standby_that_lacks_what_was_published_stops_for_good(
    pair: Pair, nats_server: NatsServer, group: str
) -> None:
    replication = Group(group, pair.source, nats_server.settings())
    replication.replicate(failover=True)
    standby = pair.start_standby()
    pair.wait_for_standby(replication)
    standby.stop()
    insert(pair.source, 1, 200)
    replication.replicate(failover=True)
    published = replication.audit().changes
    pair.primary.kill()
    standby.start()
    promoted = replace(replication, source=pair.promote())
    insert(promoted.source, 1000, 1019)
    with pytest.raises(HistoryError, match=r"left timeline 1 at .* for timeline 2.*do not exist on the new one"):
        promoted.replicate(failover=True)
    promoted.source.execute("INSERT INTO t SELECT n, repeat('y', 200) FROM generate_series(5000, 9000) n")
    lift(promoted)
    with pytest.raises(HistoryError, match="left timeline 1"):
        promoted.replicate(failover=True)
    assert promoted.audit().changes == published
    assert promoted.record("group")["timeline"] == 1


def test_failover_without_the_setting_that_keeps_slots_behind_standbys_is_warned_of(
    pair: Pair, nats_server: NatsServer, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    replication = Group(group, pair.source, nats_server.settings())
    replication.replicate(failover=True)
    assert "synchronized_standby_slots of the source is empty" in caplog.text


async def last_anchor(stream: ChangeStream, _: StateBucket) -> str:
    message = await stream.last_message()
    assert message is not None
    return message.headers["Pgsluice-Anchor"]


def test_each_message_names_the_transaction_before_it(source: Database, nats_server: NatsServer, group: str) -> None:
    replication = Group(group, source, nats_server.settings())
    replication.replicate()
    insert(source, 1, 1)
    replication.replicate()
    first = replication.with_broker(last_anchor)
    with source.connect(autocommit=False) as connection:
        [(xid,)] = connection.execute("SELECT pg_current_xact_id()::text").fetchall()
        connection.execute("INSERT INTO t VALUES (2, 'b')")
    replication.replicate()
    message = replication.last_message()
    assert message.headers["Pgsluice-After"] == first
    assert message.headers["Pgsluice-Anchor"].split(" ")[1] == xid
