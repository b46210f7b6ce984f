"""A replicator obeys what is desired of it, whoever started it: it rests without a connection to the source, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, Desired, DesiredRecord, ProcessRecord, desired_key, process_key
from pgsluice.shared.process.pulse import Activity
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.stream_audit import audit_stream
from tests.waiting import wait_until

DEADLINE_S = 90.0


@pytest.fixture
def streaming(source_database: Database, nats_server: NatsServer, group: str) -> Iterator[StreamingGroup]:
    """Copies nothing, so it needs no Spark."""
    made = StreamingGroup(group, source_database, nats_server, copy_and_stream=False)
    yield made
    made.close()


def desire(group: StreamingGroup, state: Desired) -> int:
    revision = group.ask(lambda bucket: bucket.put(desired_key(REPLICATOR_UNIT), DesiredRecord(state, "a test", "pytest")))
    assert isinstance(revision, int)
    return revision


def wait_for_process(group: StreamingGroup, holds: Callable[[ProcessRecord], bool], what: str) -> ProcessRecord:
    def found() -> ProcessRecord | None:
        entry = group.ask(lambda bucket: bucket.read(process_key(REPLICATOR_UNIT), ProcessRecord))
        return entry.value if entry is not None and holds(entry.value) else None

    record = wait_until(found, deadline_s=DEADLINE_S, what=what, interval_s=0.2)
    assert record is not None
    return record


def pause(group: StreamingGroup) -> None:
    """Returns when it is acknowledged and in force."""
    revision = desire(group, Desired.PAUSED)
    wait_for_process(group, lambda told: told.acknowledged == revision and told.activity is Activity.PAUSED, "the pause")


def connections(source: Database) -> list[tuple[object, ...]]:
    """Of the group to its source; the test's own are not among them."""
    return source.execute(
        "SELECT application_name, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND application_name LIKE 'pgsluice%%'"
    )


def test_a_paused_replicator_has_no_connection_to_the_source_and_goes_on(streaming: StreamingGroup) -> None:
    with streaming.running() as process:
        assert connections(streaming.source)
        streaming.insert("t", 11, 20)
        pause(streaming)
        assert connections(streaming.source) == []
        is_active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        assert streaming.source.execute(is_active, [streaming.names.slot]) == [(False,)]
        streaming.insert("t", 21, 30)
        desire(streaming, Desired.RUNNING)
        streaming.wait_until_published()
        assert asyncio.run(audit_stream(streaming.nats.settings(), streaming.name)).problems == []
        assert process.is_running


def test_a_pause_is_obeyed_when_the_broker_is_back(source_database: Database, group: str) -> None:
    with NatsServer() as nats:
        made = StreamingGroup(group, source_database, nats, copy_and_stream=False)
        try:
            with made.running() as process:
                nats.stop()
                process.wait_for_log("cannot be read, continuing as before")
                nats.start()
                pause(made)
                assert connections(made.source) == []
                nats.stop()
                nats.start()
                made.insert("t", 11, 20)
                desire(made, Desired.RUNNING)
                made.wait_until_published()
                assert process.is_running
        finally:
            made.close()


def test_a_replicator_that_is_to_be_stopped_ends_and_ends_again_at_once(streaming: StreamingGroup) -> None:
    with streaming.running() as process:
        revision = desire(streaming, Desired.STOPPED)
        assert process.wait() == 0
    told = wait_for_process(streaming, lambda told: told.exit_code is not None, "the end")
    assert (told.exit_code, told.acknowledged) == (0, revision)
    streaming.process.start()
    assert streaming.process.wait() == 0
    assert streaming.process.log().count("replicating ") == 1
    desire(streaming, Desired.RUNNING)
    with streaming.running():
        pass


def test_a_replicator_that_was_killed_while_paused_rests_again(streaming: StreamingGroup) -> None:
    with streaming.running() as process:
        pause(streaming)
        process.kill()
    streaming.insert("t", 11, 20)
    streaming.process.start()
    before = wait_for_process(streaming, lambda told: told.pid == streaming.process.pid, "the next process")
    wait_for_process(streaming, lambda told: told.started_at == before.started_at and told.activity is Activity.PAUSED, "rest")
    assert connections(streaming.source) == []
    desire(streaming, Desired.RUNNING)
    streaming.wait_until_published()
    streaming.process.terminate()
    assert streaming.process.wait() == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_pause_in_a_copy_releases_the_snapshot_and_the_copy_starts_over(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    made = StreamingGroup(group, source_database, nats_server, tables="*")
    made.process = PgsluiceProcess("replicator", config=made.keys, is_fresh=True)  # tasks' connections end with its own Spark
    try:
        made.create("large")
        source_database.execute("INSERT INTO large SELECT n, repeat('v', 500) || n FROM generate_series(1, 60000) n")
        with made.running():
            made.wait_for_table("large", lambda record: 0 < record.ranges_done < record.ranges, "a part of the copy")
            pause(made)
            assert connections(source_database) == []
            record = made.table("large")
            assert record is not None
            assert record.phase is not Phase.FINISHED_COPY
            made.insert("large", 60_001, 60_010)
            desire(made, Desired.RUNNING)
            finished = made.wait_for_copy("large")
            assert finished.attempt > 1 or finished.snapshot != record.snapshot
            assert made.read("large", "t") == made.at_source("large", "t")
    finally:
        made.close()
