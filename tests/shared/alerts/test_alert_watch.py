"""Alerts of a real group at a real receiver, sent by one process at a time."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from pgsluice.replicator.tasks import cancel
from pgsluice.shared.alerts import alert_watch
from pgsluice.shared.alerts.alert_overrides import OVERRIDES, TEST_KEY, AlertOverrides, AlertTest
from pgsluice.shared.alerts.alert_state import ALERTS_KEY, AlertsRecord
from pgsluice.shared.alerts.alert_watch import AlertWatch
from pgsluice.shared.alerts.slot_record import SLOT_KEY, SlotRecord
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord, now
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.unit_records import ALIVE_INTERVAL_S
from pgsluice.shared.broker.worker_records import MissedReport, WorkerReport, worker_key
from pgsluice.shared.config.alert_settings import AlertSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.units import unit_states
from pgsluice.shared.wire.names import GroupNames
from tests.alerting import alerts_to
from tests.replicated_group import Group
from tests.servers import NatsServer, PgsluiceProcess
from tests.servers.http_server import Answer, HttpServer
from tests.waiting import wait_until_async

QUICK = Pauses(0.05, 0.1)
STREAM = StreamSettings(1, (), 1 << 20, "none", 60.0)


@pytest.fixture
def receiver() -> Iterator[HttpServer]:
    with HttpServer() as server:
        yield server


@pytest.fixture(autouse=True)
def holders_are_missed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_watch, "SILENCE_S", 1.0)


@pytest.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[Client]:
    async with connected(nats_server.settings(), "test") as made:
        yield made


@pytest.fixture
async def names(group: str, client: Client) -> GroupNames:
    names = GroupNames(group)
    await ChangeStream(client, names).ensure(STREAM)
    await StateBucket(client, names).ensure(STREAM)
    return names


@asynccontextmanager
async def watching(settings: AlertSettings, names: GroupNames, client: Client, unit: str = "replicator") -> AsyncIterator[None]:
    """What a process does that is stopped in the end."""
    task = asyncio.create_task(AlertWatch(settings, names, unit, lambda: client, QUICK).run())
    try:
        yield
    finally:
        await cancel([task])


def told(receiver: HttpServer) -> list[tuple[str, str, str]]:
    return [(each["alert"], each["subject"], each["state"]) for request in receiver.requests for each in request.objects]


async def until_told(receiver: HttpServer, count: int) -> list[tuple[str, str, str]]:
    async def enough() -> bool:
        return len(receiver.requests) >= count

    await wait_until_async(enough, what=f"{count} alerts; there are {told(receiver)}")
    return told(receiver)


async def looks_done(client: Client, names: GroupNames, count: int = 5) -> None:
    """Returns when the record was written so many times more."""
    bucket = StateBucket(client, names)
    entry = await bucket.get("alerts")
    first = 0 if entry is None else entry.revision

    async def later() -> bool:
        entry = await bucket.get("alerts")
        return entry is not None and entry.revision >= first + count

    await wait_until_async(later, what="some looks")


async def holder_after_a_look(client: Client, names: GroupNames) -> str:
    await looks_done(client, names, 1)
    entry = await StateBucket(client, names).read(ALERTS_KEY, AlertsRecord)
    assert entry is not None
    return entry.value.holder


async def put_table(client: Client, names: GroupNames, phase: Phase, error: str = "") -> None:
    ledger = Ledger(StateBucket(client, names))
    copy = SnapshotRecord("", "", CopyState.RUNNING, CopyMode.COPY, now(), "", 0, "7", "shop", "2026-01-31T12:00:00Z")
    await ledger.store_snapshot(copy)
    await ledger.store_table(TableRecord(1, "public", "t", phase, now(), error=error, remedy="grant it" if error else ""))


async def _is_last(receiver: HttpServer, alert: tuple[str, str, str]) -> bool:
    return told(receiver)[-1] == alert


async def test_an_errored_table_is_told_once_and_again_and_when_it_is_over(
    client: Client, names: GroupNames, receiver: HttpServer
) -> None:
    await put_table(client, names, Phase.ERRORED, "permission denied")
    async with watching(alerts_to(receiver.url, token="t0ken", repeat_s=3600.0), names, client):
        await until_told(receiver, 1)
        await looks_done(client, names)
        assert told(receiver) == [("table-errored", "public.t", "firing")]
    async with watching(alerts_to(receiver.url, token="t0ken", repeat_s=0.5), names, client):
        await until_told(receiver, 2)
        await put_table(client, names, Phase.FINISHED_COPY)
        resolved = ("table-errored", "public.t", "resolved")
        await wait_until_async(lambda: _is_last(receiver, resolved), what="the end is told")
        count = len(receiver.requests)
        await looks_done(client, names)
        assert len(receiver.requests) == count
    first = receiver.requests[0].objects[0]
    assert first["group"] == names.group
    assert (first["severity"], first["fact"], first["remedy"]) == ("warning", "permission denied", "grant it")
    assert receiver.requests[0].headers["authorization"] == "Bearer t0ken"
    assert [each.objects[0]["repeated"] for each in receiver.requests[:2]] == [False, True]


@pytest.fixture
def streamed(replication: Group) -> GroupNames:
    """A group with one message in its stream."""
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'v')")
    replication.replicate()
    return replication.names


async def test_a_lag_is_told_when_it_has_lasted_and_resolves(streamed: GroupNames, client: Client, receiver: HttpServer) -> None:
    names, state = streamed, await ChangeStream(client, streamed).state()
    assert state is not None
    bucket = StateBucket(client, names)
    await bucket.put(worker_key("lake"), WorkerReport(0, commit_lsn="0/1", stream_created=state.created))
    async with watching(alerts_to(receiver.url, lag_s=0.5, for_s=0.5), names, client, "worker.lake"):

        async def lag_told() -> bool:
            return ("lag", "lake", "firing") in told(receiver)

        await wait_until_async(lag_told, what="an alert about the lag")
        await bucket.put(worker_key("lake"), WorkerReport(1, commit_lsn="0/1", stream_created=state.created))

        async def over() -> bool:
            return ("lag", "lake", "resolved") in told(receiver)

        await wait_until_async(over, what="the end of the lag")


async def test_rows_that_a_worker_misses_in_a_copied_table_are_told_of(
    client: Client, names: GroupNames, receiver: HttpServer
) -> None:
    await put_table(client, names, Phase.FINISHED_COPY)
    missed = MissedReport(1, "public.t", 3, now(), expected=False)
    await StateBucket(client, names).put(worker_key("lake"), WorkerReport(0, missed=(missed,)))
    async with watching(alerts_to(receiver.url, for_s=3600.0), names, client):

        async def is_told() -> bool:
            return ("rows-missing", "lake", "firing") in told(receiver)

        await wait_until_async(is_told, what="an alert about missing rows")


async def test_of_several_processes_one_tells_and_another_goes_on_when_it_is_gone(
    client: Client, names: GroupNames, receiver: HttpServer, nats_server: NatsServer
) -> None:
    settings = alerts_to(receiver.url)
    await put_table(client, names, Phase.ERRORED, "permission denied")
    killed = asyncio.create_task(AlertWatch(settings, names, "replicator", lambda: other, QUICK).run())
    async with connected(nats_server.settings(), "killed") as other:
        await until_told(receiver, 1)
        async with watching(settings, names, client, "worker.lake"), watching(settings, names, client, "worker.file"):
            assert {(await holder_after_a_look(client, names)).partition(" ")[0] for _ in range(6)} == {"replicator"}
            assert told(receiver) == [("table-errored", "public.t", "firing")]
            await other.close()  # as a kill does: nothing is given back
            await put_table(client, names, Phase.FINISHED_COPY)
            assert await until_told(receiver, 2) == [
                ("table-errored", "public.t", "firing"),
                ("table-errored", "public.t", "resolved"),
            ]
            assert receiver.requests[1].objects[0]["sent_by"].startswith("worker.")
    await cancel([killed])


async def test_a_restart_neither_repeats_nor_forgets(client: Client, names: GroupNames, receiver: HttpServer) -> None:
    settings = alerts_to(receiver.url)
    await put_table(client, names, Phase.ERRORED, "permission denied")
    async with watching(settings, names, client):
        await until_told(receiver, 1)
        await looks_done(client, names)
    async with watching(settings, names, client):
        await looks_done(client, names)
        assert len(receiver.requests) == 1
    await put_table(client, names, Phase.FINISHED_COPY)
    async with watching(settings, names, client):
        assert (await until_told(receiver, 2))[-1] == ("table-errored", "public.t", "resolved")


async def test_a_receiver_that_refuses_is_asked_again(client: Client, names: GroupNames, receiver: HttpServer) -> None:
    receiver.answers = [Answer(503), Answer(401), Answer(302)]
    await put_table(client, names, Phase.ERRORED, "permission denied")
    async with watching(alerts_to(receiver.url), names, client):
        await until_told(receiver, 4)
        await looks_done(client, names)
        assert len(receiver.requests) == 4
    assert len({request.objects[0]["id"] for request in receiver.requests}) == 1


async def test_a_variable_that_a_process_lacks_is_told_and_alerts_go_on_as_it_was_started(
    client: Client, names: GroupNames, receiver: HttpServer
) -> None:
    bucket = StateBucket(client, names)
    await bucket.put(OVERRIDES.key, AlertOverrides(webhook="${ALERT_THAT_NOBODY_SET}", lag_s=1.0))
    await put_table(client, names, Phase.ERRORED, "permission denied")
    async with watching(alerts_to(receiver.url), names, client):
        assert await until_told(receiver, 1) == [("table-errored", "public.t", "firing")]
        entry = await bucket.read(ALERTS_KEY, AlertsRecord)
        assert entry is not None
        assert "${ALERT_THAT_NOBODY_SET}" in entry.value.problem


async def test_a_variable_that_is_not_meant_for_alerts_is_sent_nowhere(
    client: Client, names: GroupNames, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote it behind the API's back."""
    monkeypatch.setenv("PASSWORD_OF_THE_SOURCE", "m4rk3r")
    await StateBucket(client, names).put(OVERRIDES.key, AlertOverrides(token="${PASSWORD_OF_THE_SOURCE}", lag_s=1.0))
    await put_table(client, names, Phase.ERRORED, "permission denied")
    async with watching(alerts_to(receiver.url), names, client):
        assert await until_told(receiver, 1) == [("table-errored", "public.t", "firing")]
    assert not [request for request in receiver.requests if "m4rk3r" in str(request.headers)]


async def test_a_test_that_nobody_could_send_for_long_is_not_sent_any_more(
    client: Client, names: GroupNames, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_watch, "TEST_PATIENCE_S", 0.0)
    bucket = StateBucket(client, names)
    await bucket.put(TEST_KEY, AlertTest("t", "ada", now()))
    async with watching(alerts_to(receiver.url), names, client):
        await looks_done(client, names)
    entry = await bucket.read(TEST_KEY, AlertTest)
    assert entry is not None
    assert (entry.value.done_at, receiver.requests) == ("", [])


async def test_a_receiver_that_may_not_be_posted_to_is_not(client: Client, names: GroupNames, receiver: HttpServer) -> None:
    await put_table(client, names, Phase.ERRORED, "permission denied")
    async with watching(alerts_to(receiver.url, allow_hosts=()), names, client):
        await looks_done(client, names)
    assert receiver.requests == []


async def test_a_command_gets_the_alert_and_none_of_our_variables(
    client: Client, names: GroupNames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSLUICE_PASSWORD", "hunter2")
    out, script = tmp_path / "out", tmp_path / "page"
    script.write_text(f'#!/bin/sh\ncat > {out}.json; env > {out}.env; echo "$@" > {out}.args; mv {out}.json {out}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    await put_table(client, names, Phase.ERRORED, "permission denied")
    settings = replace(alerts_to(""), command=(str(script), "--team", "data"))
    async with watching(settings, names, client):

        async def written() -> bool:
            return out.exists()

        await wait_until_async(written, what="what the command writes")
    content, arguments, environment = await asyncio.to_thread(what_was_written, out)
    assert (content["alert"], content["state"]) == ("table-errored", "firing")
    assert arguments == "--team data\n"
    assert "PGSLUICE_ALERT_FACT=permission denied" in environment
    assert "hunter2" not in environment


def what_was_written(out: Path) -> tuple[dict[str, Any], str, str]:
    return json.loads(out.read_text()), Path(f"{out}.args").read_text(), Path(f"{out}.env").read_text()


@pytest.fixture
def replicator(replication: Group, receiver: HttpServer) -> Iterator[PgsluiceProcess]:
    """A replicator that tells of alerts, in a process of its own."""
    source = replication.source.settings
    config = {
        "group": replication.name,
        "nats-url": replication.nats.url,
        "host": source.host,
        "port": source.port,
        "dbname": source.dbname,
        "user": source.user,
        "alert-webhook": receiver.url,
        "alert-webhook-allow-hosts": ["127.0.0.0/8"],
        "alert-interval": "1s",
        "alert-for": "0s",
    }
    with PgsluiceProcess("replicator", config=config) as process:
        process.wait_for_log("replicating")
        yield process


async def test_a_replicator_that_was_killed_is_told_of_by_another_process_and_its_return_too(
    replicator: PgsluiceProcess, replication: Group, client: Client, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_states, "LONGEST_SILENCE_S", 1.2 * ALIVE_INTERVAL_S)
    names = replication.names
    await looks_done(client, names, 2)  # the replicator's own
    bucket = StateBucket(client, names)
    slot = await wait_until_async(lambda: bucket.read(SLOT_KEY, SlotRecord), what="what it tells of its slot")
    assert slot is not None
    assert (slot.value.name, slot.value.lost) == (names.slot, "")
    async with watching(alerts_to(receiver.url), names, client, "worker.lake"):
        await looks_done(client, names, 2)
        assert receiver.requests == []
        await asyncio.to_thread(replicator.kill)
        assert await until_told(receiver, 1) == [("unit-down", "replicator", "firing")]
        content = receiver.requests[0].objects[0]
        assert (content["severity"], content["sent_by"]) == ("critical", "worker.lake")
        replicator.start()
        assert (await until_told(receiver, 2))[-1] == ("unit-down", "replicator", "resolved")
