"""What ``pgsluice status`` shows, whatever is missing, and its exit code, which a script asks whether a group is there."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from pgsluice.console import program
from pgsluice.console.status import run
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord, now
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.unit_records import (
    REPLICATOR_UNIT,
    Desired,
    DesiredRecord,
    ProcessRecord,
    WaitRecord,
    desired_key,
    process_key,
    worker_unit,
)
from pgsluice.shared.broker.worker_records import LeaseRecord, MissedReport, WorkerReport, lease_key, worker_key
from pgsluice.shared.config.settings import PostgresSettings, StatusSettings
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.process.pulse import Activity
from pgsluice.shared.wire.message import MessageHeaders
from tests.console.test_drop import publish_second_group
from tests.replicated_group import Group
from tests.servers.child import free_port


def settings(replication: Group, source: PostgresSettings | None) -> StatusSettings:
    return StatusSettings(replication.name, replication.settings().log, replication.nats, source)


def status(replication: Group, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    run(settings(replication, replication.source.settings), as_json=True)
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_a_group_that_was_never_started_shows_nothing(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(replication, capsys)
    assert (found["bound_to"], found["slot"], found["stream"], found["workers"]) == (None, None, None, [])
    run(settings(replication, None), as_json=False)
    assert "never been started" in capsys.readouterr().out


def test_a_worker_that_lags_lacks_the_bytes_that_changes_have_before_compression(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.replicate()
    for start in (1000, 2000):
        replication.source.execute(f"INSERT INTO t SELECT n, 'v' FROM generate_series({start}, {start} + 999) n")
        replication.replicate(compression="zstd")

    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        await bucket.put(worker_key("w"), WorkerReport(1, commit_lsn="0/1", stream_created=state.created))

    replication.with_broker(register)
    [worker] = status(replication, capsys)["workers"]
    headers = MessageHeaders.decode(replication.last_message().headers)
    assert headers.size is not None
    assert (worker["lag_messages"], worker["lag_bytes"]) == (1, headers.size)


def test_slot_stream_and_workers_are_shown_with_their_lag(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    replication.replicate()
    for number in range(2):
        replication.source.execute(f"INSERT INTO t VALUES ({number}, 'v')")
        replication.replicate()

    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        await bucket.put(worker_key("w"), WorkerReport(1, commit_lsn="0/1", stream_created=state.created))

    replication.with_broker(register)
    found = status(replication, capsys)
    assert found["slot"]["confirmed_flush"] == replication.confirmed_lsn()
    assert (found["slot"]["lost"], found["slot"]["lag_bytes"] >= 0) == ("", True)
    assert found["stream"]["last_sequence"] == 2
    [worker] = found["workers"]
    assert (worker["lag_messages"], worker["lag_bytes"]) == (1, len(replication.last_message().data))
    assert 0 < worker["lag_s"] < 60
    run(settings(replication, replication.source.settings), as_json=False)
    shown = capsys.readouterr().out
    assert "w: sequence 1, commit 0/1, 1 messages" in shown
    assert "not running, HOLDS BACK 1 messages" in shown
    assert "pgsluice forget" not in shown


def test_a_worker_is_to_be_forgotten_only_when_it_was_silent_for_long_and_that_costs_something(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'v')")
    replication.replicate()

    def shown(heard_of: str) -> str:
        async def register(stream: ChangeStream, bucket: StateBucket) -> None:
            state = await stream.state()
            assert state is not None
            await bucket.put(worker_key("w"), WorkerReport(0, stream_created=state.created, updated_at=heard_of))

        replication.with_broker(register)
        run(settings(replication, None), as_json=False)
        return capsys.readouterr().out

    assert "pgsluice forget" not in shown(now())
    said = shown("2026-01-01T00:00:00+00:00")
    assert (
        "HOLDS BACK 1 messages (if it does not come back, 'pgsluice forget --worker w'; its position is removed permanently"
        in said
    )


def test_a_group_whose_copy_is_finished_is_ready_and_not_behind(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    async def copied(stream: ChangeStream, bucket: StateBucket) -> None:
        await bucket.ensure(replication.settings().stream)
        snapshot = SnapshotRecord("s", "0/80", CopyState.FINISHED, CopyMode.COPY, now(), now(), 40, "7", "shop", "earlier")
        await Ledger(bucket).store_snapshot(snapshot)
        await Ledger(bucket).store_table(TableRecord(1, "public", "t", Phase.FINISHED_COPY, now(), "s", "0/80"))
        ended = ProcessRecord("h", 1, now(), now(), Activity.ENDING, exit_code=0, is_finished=True)
        await bucket.put(process_key(REPLICATOR_UNIT), ended)
        await bucket.put(worker_key("w"), WorkerReport(0, 40))

    replication.with_broker(copied)
    found = status(replication, capsys)
    assert [table["phase"] for table in found["tables"]] == ["ready"]
    assert [worker["lag_messages"] for worker in found["workers"]] == [0]
    run(settings(replication, None), as_json=False)
    shown = capsys.readouterr().out
    assert "replicator   copies, and streams nothing" in shown
    assert "0 messages, 0 B, 0.0 s behind" in shown


def test_what_runs_out_is_told_before_it_has(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'v')")
    replication.replicate()
    assert status(replication, capsys)["shortages"] == []

    async def shrink() -> None:
        async with connected(replication.nats, "test") as client:
            jetstream, name = client.jetstream(), replication.names.changes_stream
            found = await jetstream.stream_info(name)
            await jetstream.update_stream(replace(found.config, max_bytes=found.state.bytes + 10))

    asyncio.run(shrink())
    [short] = status(replication, capsys)["shortages"]
    assert (short["alert"], short["subject"]) == ("stream-nearly-full", replication.names.changes_stream)
    run(settings(replication, None), as_json=False)
    assert f"RUNS OUT     {short['fact']}" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_a_lease_that_is_not_renewed_is_no_sign_of_a_worker(
    replication: Group, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    replication.replicate()

    async def leave(_: ChangeStream, bucket: StateBucket) -> None:
        await bucket.put(worker_key("w"), WorkerReport(0, commit_lsn="0/1"))
        await bucket.put(lease_key("w"), LeaseRecord("here", 1))

    replication.with_broker(leave)
    monkeypatch.setattr("pgsluice.console.worker_status.LEASE_DURATION_S", seconds)
    [worker] = status(replication, capsys)["workers"]
    assert worker["holds_lease"] == bool(seconds)


def test_changes_that_met_no_row_are_shown_and_are_evidence_where_the_table_was_copied(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.replicate()
    since = "2026-01-31T12:00:00+00:00"
    missed = (
        MissedReport(1, "public.copied", 3, since, expected=False, updates=1, deletes=2, position="0/3E8:1"),
        MissedReport(2, "public.streamed", 2, since, expected=False),
        MissedReport(3, "public.filtered", 1, since, expected=True),
    )

    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        report = WorkerReport(0, commit_lsn="0/1", stream_created=state.created, missed=missed, missed_tables=5)
        await bucket.put(worker_key("w"), report)
        ledger = Ledger(bucket)
        for oid in (1, 3):
            await ledger.store_table(TableRecord(oid, "public", "t", Phase.FINISHED_COPY, since, "s", "0/1"))

    replication.with_broker(register)
    [worker] = status(replication, capsys)["workers"]
    assert [(each["table"], each["changes"], each["diverged"]) for each in worker["missed"]] == [
        ("public.copied", 3, True),
        ("public.streamed", 2, False),
        ("public.filtered", 1, False),
    ]
    run(settings(replication, None), as_json=False)
    shown = capsys.readouterr().out
    seen = "met no row since 2026-01-31T12:00:00"
    assert f"3 changes (1 updates, 2 deletes) of table public.copied {seen}; it was copied, so SOURCE AND TARGET DIFFER" in shown
    assert "'pgsluice messages --from 0/3E8:1 --limit 1'" in shown
    assert f"2 changes of table public.streamed {seen}\n" in shown
    assert "and those of 2 tables more" in shown


def test_tables_that_catch_up_are_shown_with_how_far_they_are_behind(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        replication.replicate()
        replication.source.execute(f"INSERT INTO t VALUES ({number}, 'v')")
    replication.replicate()

    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        assert state.last_sequence == 3
        report = WorkerReport(3, commit_lsn="0/1", stream_created=state.created, catching_up=(7, 8), catch_up_sequence=1)
        await bucket.put(worker_key("w"), report)

    replication.with_broker(register)
    [worker] = status(replication, capsys)["workers"]
    assert (worker["lag_messages"], worker["catching_up"], worker["catch_up_lag_messages"]) == (0, 2, 2)
    assert worker["catch_up_lag_s"] > 0
    run(settings(replication, None), as_json=False)
    assert ", 2 tables catching up: 2 messages, " in capsys.readouterr().out


def test_a_source_that_does_not_answer_is_said_and_the_rest_is_shown(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.replicate()
    run(settings(replication, replace(replication.source.settings, port=free_port())), as_json=False)
    shown = capsys.readouterr().out
    assert "slot         not known: PostgreSQL at 127.0.0.1" in shown
    assert "stream       0 messages" in shown


def test_a_broker_that_does_not_answer_is_a_transient_error(replication: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.shared.broker.connection.CONNECT_DEADLINE_S", 0.2)
    nowhere = replace(replication.nats, url=f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(TransientError, match="does not answer"):
        run(replace(settings(replication, None), nats=nowhere), as_json=False)


def command(replication: Group, group: str, *flags: str) -> int:
    """Its exit code; the output is the caller's to capture."""
    return program.run(["status", f"--group={group}", f"--nats-url={replication.nats.url}", *flags])


def test_status_of_a_group_that_was_never_started_is_1_and_of_another_0(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(replication, "no-such-group") == 1
    assert "has never been started" in capsys.readouterr().out
    assert command(replication, "no-such-group", "--json") == 1
    assert json.loads(capsys.readouterr().out)["bound_to"] is None
    replication.replicate()
    assert command(replication, replication.name) == 0


def test_status_of_a_group_that_is_only_copied_is_0(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``--copy`` leaves it: tables in the ledger, and no slot that it would be bound to."""

    async def note(_: ChangeStream, bucket: StateBucket) -> None:
        await bucket.ensure(replication.settings().stream)
        copy = SnapshotRecord("", "", CopyState.RUNNING, CopyMode.COPY, now(), "", 0, "7", "shop", "2026-01-31T12:00:00Z")
        await Ledger(bucket).store_snapshot(copy)
        await Ledger(bucket).store_table(TableRecord(1, "public", "t", Phase.FINISHED_COPY, now()))

    replication.with_broker(note)
    code, printed = command(replication, replication.name), capsys.readouterr().out
    assert (code, "copied, and never streamed" in printed, "public.t" in printed) == (0, True, True)


def test_the_state_of_each_process_is_shown_with_what_it_waits_for(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.replicate()
    told = ProcessRecord("here", 1, now(), now(), Activity.WORKING)
    wait = WaitRecord(Cause.TARGET, "the target is away", told.started_at, "2026-01-31T12:00:00+00:00")

    async def tell(_: ChangeStream, bucket: StateBucket) -> None:
        for name, record in (("well", told), ("ill", replace(told, wait=wait)), ("resting", told)):
            await bucket.put(worker_key(name), WorkerReport(0, commit_lsn="0/1"))
            await bucket.put(process_key(worker_unit(name)), record)
            await bucket.put(lease_key(name), LeaseRecord("here", 1))
        await bucket.put(desired_key(worker_unit("resting")), DesiredRecord(Desired.PAUSED, "a release", "ann", now()))

    replication.with_broker(tell)
    found = {unit["unit"]: unit for unit in status(replication, capsys)["units"]}
    assert {unit: each["state"] for unit, each in found.items()} == {
        REPLICATOR_UNIT: "finished",
        worker_unit("well"): "running",
        worker_unit("ill"): "failing",
        worker_unit("resting"): "pausing",
    }
    assert (found[worker_unit("ill")]["cause"], found[worker_unit("ill")]["fact"]) == ("target", "the target is away")
    assert {worker["name"]: worker["waiting"] for worker in status(replication, capsys)["workers"]}["ill"] == "the target is away"
    run(settings(replication, None), as_json=False)
    shown = capsys.readouterr().out
    assert ": the target is away; tries again at 12:00:00 UTC" in shown
    assert "FAILING since " in shown
    assert "PAUSING since " in shown


def test_a_group_that_a_worker_publishes_tells_of_that_worker_and_how_far_it_is(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    """What that has not applied is in no lag of the group's own workers."""
    second = publish_second_group(replication)
    replication.source.execute("INSERT INTO t VALUES (1, 'v')")
    replication.replicate()

    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        await bucket.put(worker_key("nats"), WorkerReport(state.last_sequence - 1, stream_created=state.created))
        wait = WaitRecord(Cause.STREAM_FULL, "stream x is full", now())
        await bucket.put(process_key(worker_unit("nats")), ProcessRecord("host", 7, now(), now(), Activity.WORKING, wait=wait))
        await bucket.put(lease_key("nats"), LeaseRecord("host", 7))

    replication.with_broker(register)
    asked = replace(settings(replication, None), group=second)
    assert run(asked, as_json=False) == 0
    shown = capsys.readouterr().out
    assert f"publisher    worker nats of group {replication.name}: 1 messages, " in shown
    assert "FAILING" in shown
    assert "stream x is full" in shown
    assert "replicator " not in shown
    run(asked, as_json=True)
    publisher = json.loads(capsys.readouterr().out)["publisher"]
    assert (publisher["group"], publisher["worker"], publisher["lag_messages"]) == (replication.name, "nats", 1)

    async def remove(stream: ChangeStream, bucket: StateBucket) -> None:
        await stream.delete()
        await bucket.destroy()

    replication.with_broker(remove)
    assert run(asked, as_json=False) == 0
    assert f"worker nats of group {replication.name}: lag not known" in capsys.readouterr().out
