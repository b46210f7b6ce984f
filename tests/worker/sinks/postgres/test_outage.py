"""Locks, deadlocks, failovers and lost positions: what passes by is waited for, and nothing is applied on top of a gap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from pgsluice.shared.errors import SinkBehindError, TerminalError, TransientError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.testing.batch import STREAM_CREATED, apply, apply_copied, write
from pgsluice.testing.changes_builder import copied, insert, message, table, update
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from pgsluice.worker.sinks.postgres.target import statement_watch
from pgsluice.worker.sinks.postgres.target.connection import connect
from tests.logged import fields_of
from tests.servers import PostgresServer
from tests.servers.child import HOST
from tests.servers.losing_proxy import LosingProxy
from tests.waiting import wait_until
from tests.worker.sinks.postgres.conftest import Target, Way, in_ways
from tests.worker.sinks.settings import worker_settings

ITEMS = table("public.items", "id bigint", "note text")
LOCKED = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
WAITING = f"{LOCKED} AND application_name = 'pgsluice worker'"


def test_a_lock_that_somebody_keeps_is_given_up_after_its_timeout_and_tried_again(target: Target) -> None:
    target.settings = replace(target.settings, lock_timeout_s=0.2)
    target.apply(insert(ITEMS, b"1", b"a"))
    messages = target.messages([update(ITEMS, b"1", b"b")])
    with target.database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE items")
        with pytest.raises(TransientError, match="55P03"):
            target.sink.commit(write(target.sink, [messages]), STREAM_CREATED)
    target.sink.commit(write(target.sink, [messages]), STREAM_CREATED)
    assert target.table("public", "items") == [("1", "b")]


def test_a_deadlock_with_somebody_else_is_transient(target: Target) -> None:
    """The worker is the one to be broken off: it comes to the last of the locks when the other waits for ``items`` already."""
    target.execute(f"ALTER DATABASE {target.database.dbname} SET deadlock_timeout = '10ms'")
    tables = [ITEMS, *(table(f"public.{name}", "id bigint", "note text") for name in ("gates", "others"))]
    target.apply(*(insert(each, b"1", b"a") for each in tables))
    partitions = [target.messages([update(each, b"1", b"b")]) for each in tables]
    outcome: list[Exception] = []

    def commit() -> None:
        try:
            target.sink.commit(write(target.sink, partitions), STREAM_CREATED)
        except TransientError as error:
            outcome.append(error)

    with target.database.connect(autocommit=False) as gate, target.database.connect(autocommit=False) as other:
        gate.execute("SELECT FROM gates FOR UPDATE")
        other.execute("SET deadlock_timeout = '100s'; UPDATE others SET note = 'theirs'")
        committing = threading.Thread(target=commit)
        committing.start()
        wait_until(lambda: target.rows(WAITING), what="the worker, which has the row of items, waits for that of gates")
        waiting = threading.Thread(target=other.execute, args=["UPDATE items SET note = 'theirs'"])
        waiting.start()
        wait_until(lambda: target.rows(f"{LOCKED} AND pid = {other.info.backend_pid}"), what="the other waits for the worker")
        gate.rollback()
        committing.join(timeout=120)
        waiting.join(timeout=120)
        other.rollback()
    assert [isinstance(error, TransientError) and "40P01" in str(error) for error in outcome] == [True]
    target.sink.commit(write(target.sink, partitions), STREAM_CREATED)
    assert [target.table("public", each.name) for each in tables] == [[("1", "b")]] * 3


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[Callable[[], PostgresServer]]:
    """Makes a server that has what the primary has now."""
    made: list[PostgresServer] = []

    def make() -> PostgresServer:
        primary.stop()
        made.append(primary.copy("127.0.0.2"))
        primary.start()
        return made[-1]

    yield make
    for server in made:
        server.close()


def fail_over(primary: PostgresServer, standby: PostgresServer) -> None:
    """To libpq a server that takes no writes is a standby."""
    with primary.connect() as connection:
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        connection.execute("SELECT pg_reload_conf()")
    standby.start()


@pytest.fixture
def followed(primary: PostgresServer) -> Iterator[Target]:
    target = Target(primary.create_database("target"), inline_bytes=0)
    hosts = f"{primary.host},127.0.0.2"
    target.settings = replace(target.settings, target=replace(target.settings.target, host=hosts))
    yield target
    target.close()


def test_a_failover_is_followed_to_the_host_that_takes_writes(
    followed: Target, primary: PostgresServer, standby: Callable[[], PostgresServer]
) -> None:
    followed.apply(insert(ITEMS, b"1", b"a"))
    successor = standby()
    messages = followed.messages([insert(ITEMS, b"2", b"b")])
    with pytest.raises(TransientError):  # the restart broke the connection
        followed.sink.commit(write(followed.sink, [messages]), STREAM_CREATED)
    receipts = write(followed.sink, [messages])
    fail_over(primary, successor)
    wait_until(lambda: is_read_only(primary), what="the old primary takes no writes")
    with pytest.raises(TransientError):
        followed.sink.commit(receipts, STREAM_CREATED)
    wait_until(lambda: applied_by(followed.sink, 2, insert(ITEMS, b"2", b"b")), what="the worker finds the new primary")
    with psycopg.connect(successor.dsn("target")) as connection:
        assert connection.execute("SELECT * FROM items ORDER BY id").fetchall() == [(1, "a"), (2, "b")]


def is_read_only(server: PostgresServer) -> bool:
    with server.connect() as connection:
        return connection.execute("SHOW default_transaction_read_only").fetchone() == ("on",)


def applied_by(sink: PostgresSink, sequence: int, change: object) -> bool:
    try:
        return apply(sink, [[message(sequence, change)]]).sequence == sequence  # type: ignore[arg-type]
    except TransientError:
        return False


def test_a_failover_that_lost_batches_asks_for_a_start_which_applies_them_again(
    followed: Target, primary: PostgresServer, standby: Callable[[], PostgresServer]
) -> None:
    followed.apply(insert(ITEMS, b"1", b"a"))
    successor = standby()
    sink = followed.new_sink()
    assert sink.open().sequence == 1
    apply(sink, [[message(2, insert(ITEMS, b"2", b"b"))]])
    primary.kill()
    successor.start()
    with pytest.raises(TransientError):
        apply(sink, [[message(3, insert(ITEMS, b"3", b"c"))]])
    with pytest.raises(SinkBehindError, match="start again") as raised:
        apply(sink, [[message(3, insert(ITEMS, b"3", b"c"))]])
    assert raised.value.exit_code == 75
    again = followed.new_sink()
    assert again.open().sequence == 1
    apply(again, [[message(2, insert(ITEMS, b"2", b"b")), message(3, insert(ITEMS, b"3", b"c"))]])
    with psycopg.connect(successor.dsn("target")) as connection:
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (3,)


def test_a_position_that_somebody_removed_stops_the_worker(target: Target) -> None:
    target.apply(insert(ITEMS, b"1", b"a"))
    messages = target.messages([insert(ITEMS, b"2", b"b")])
    target.execute("DELETE FROM pgsluice.applied")
    with pytest.raises(
        TerminalError, match=r"position of worker 'postgres' of group 'orders' in pgsluice\.applied is gone.*restore"
    ):
        target.sink.commit(write(target.sink, [messages]), STREAM_CREATED)
    assert target.table("public", "items") == [("1", "a")]


@in_ways(Way.STAGED)
def test_groups_and_workers_share_a_target_without_touching_each_others_positions(target: Target) -> None:
    """Nor each other's staging tables. One table is written by all of them."""

    def new_sink(group: str) -> PostgresSink:
        settings = replace(WORKER, group=group)
        return PostgresSink(settings, target.settings, target.inline_bytes)

    shared = table("public.shared", "id bigint", "note text")
    sinks = {group: new_sink(group) for group in ("east", "west", "north-1", "north_1")}
    for number, (group, sink) in enumerate(sinks.items(), 1):
        assert sink.open().sequence == 0
        own = table(f"public.{group}", "id bigint")
        apply_copied(sink, [[copied(1, own, (b"1",)), copied(2, shared, (b"%d" % number, group.encode()))]])
        sink.finish_copy()
    failures: list[Exception] = []

    def follow(group: str, number: int) -> None:
        for sequence in range(1, 21):
            note = f"{group} {sequence}".encode()
            changes = (update(shared, b"%d" % number, note), insert(shared, b"%d" % (100 * sequence + number), note))
            try:
                apply(sinks[group], [[message(sequence, *changes)]])
            except Exception as error:  # noqa: BLE001  whatever it is, the test reports it
                failures.append(error)
                return

    following = [threading.Thread(target=follow, args=(group, number)) for number, group in enumerate(sinks, 1)]
    for thread in following:
        thread.start()
    for thread in following:
        thread.join(timeout=60)
    for sink in sinks.values():
        sink.close()
    assert failures == []
    assert target.rows("SELECT count(*), count(*) FILTER (WHERE note LIKE '% 20') FROM shared") == [(84, 8)]
    assert target.rows("SELECT DISTINCT sequence, snapshot_sequence FROM pgsluice.applied") == [(20, 2)]


WORKER = worker_settings("orders", name="postgres")


HOLDS_THE_POSITION = "BEGIN; SELECT FROM pgsluice.applied FOR UPDATE"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_watch, "LOOK_INTERVAL_S", 0.05)


def test_a_session_of_an_earlier_worker_that_hears_nothing_is_named_and_ended(
    target: Target, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its worker's machine is gone, and nothing told the server."""
    target.apply(insert(ITEMS, b"1", b"a"))
    ghost = connect(target.settings, "pgsluice worker")
    ghost.execute(HOLDS_THE_POSITION)
    assert target.new_sink().open().sequence == 1
    told = [fields_of(each)["process"] for each in caplog.records if "an earlier session of this worker" in each.message]
    assert told == [ghost.info.backend_pid]
    ghost.close()


def test_a_session_of_an_earlier_worker_that_works_is_waited_for(target: Target, impatient: None) -> None:
    target.apply(insert(ITEMS, b"1", b"a"))
    with connect(target.settings, "pgsluice worker") as predecessor:
        predecessor.execute(HOLDS_THE_POSITION)

        def work() -> None:
            predecessor.execute("SELECT pg_sleep(1); UPDATE pgsluice.applied SET sequence = 7; COMMIT")

        working = threading.Thread(target=work)
        working.start()
        assert target.new_sink().open().sequence == 7
        working.join()


def test_somebody_else_who_holds_the_position_is_left_alone(target: Target, impatient: None) -> None:
    target.apply(insert(ITEMS, b"1", b"a"))
    sink = target.new_sink()
    pulse = Pulse()
    sink.report_to(pulse)
    with target.database.connect() as person:
        person.execute(HOLDS_THE_POSITION)
        opening = threading.Thread(target=sink.open)
        opening.start()
        wait = wait_until(lambda: pulse.wait, what="a wait")
        assert f"process {person.info.backend_pid} holds" in wait.reason
        wait_until(lambda: pulse.wait is not None and pulse.wait is not wait, what="another look")
        person.execute("COMMIT")
        opening.join()


def test_a_batch_whose_answer_is_lost_on_the_way_is_applied_once(
    target: Target, postgres: PostgresServer, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the server still believes in the first session, which holds the position."""
    target.apply(insert(ITEMS, b"1", b"a"))
    with LosingProxy(postgres.port) as proxy:
        target.settings = replace(target.settings, target=replace(target.settings.target, host=HOST, port=proxy.port))
        sink = target.new_sink()
        sink.open()
        receipts = write(sink, [target.messages([update(ITEMS, b"1", b"b")])])
        failed: list[TransientError] = []

        def commit() -> None:
            try:
                sink.commit(receipts, STREAM_CREATED)
            except TransientError as error:
                failed.append(error)

        with target.database.connect() as other:
            other.execute("BEGIN; LOCK TABLE items")
            committing = threading.Thread(target=commit)
            committing.start()
            wait_until(lambda: target.rows(WAITING), what="the merge waits for the lock")
            proxy.lose()
            other.execute("COMMIT")
            committing.join(60)
        assert len(failed) == 1
        assert sink.commit(receipts, STREAM_CREATED).sequence == 2
        assert target.table("public", "items") == [("1", "b")]
        assert target.rows("SELECT changes FROM pgsluice.applied") == [(2,)]
        sink.close()


def test_the_server_notices_within_seconds_that_a_worker_is_gone(target: Target) -> None:
    """Of an answer that nobody takes, and of a connection on which nothing is under way."""
    with connect(target.settings, "test") as connection:
        query = "SELECT current_setting('tcp_user_timeout'), current_setting('tcp_keepalives_idle')"
        assert connection.execute(query).fetchall() == [("20000", "10")]
