"""``pgsluice lag``: its exit code, and the line that says why."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgsluice.console import program
from pgsluice.console.lag import LagLimit, judge, run, trouble_of
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.lag import NO_LAG, UNKNOWN_LAG, Lag
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, SnapshotRecord, now
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.unit_records import ProcessRecord, process_key, worker_of_unit, worker_unit
from pgsluice.shared.broker.worker_records import LeaseRecord, WorkerReport, lease_key, worker_key
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.process.pulse import Activity
from pgsluice.shared.units.unit_states import State, UnitState
from tests.replicated_group import Group


@pytest.mark.parametrize(
    ("lags", "within", "reason"),
    [
        ([NO_LAG], True, "0 messages, 0 B, 0.0 s behind"),
        ([Lag(3, 100, 30.0)], True, "3 messages, 100 B, 30.0 s behind"),
        ([Lag(3, 100, 30.5)], False, "3 messages, 100 B, 30.5 s behind: more than 30 s"),
        ([Lag(11, 100, 1.0)], False, "11 messages, 100 B, 1.0 s behind: more than 10 messages"),
        ([Lag(11, 100, 31.0)], False, "11 messages, 100 B, 31.0 s behind: more than 30 s and more than 10 messages"),
        ([Lag(3)], False, "3 messages of lag, and the first of them is gone from the stream"),
        ([UNKNOWN_LAG], False, "its lag is not known: it is bound to another stream"),
        ([NO_LAG, Lag(5, 100, 40.0)], False, "5 messages, 100 B, 40.0 s behind: more than 30 s"),
    ],
)
def test_a_worker_is_judged_by_the_furthest_of_its_places(lags: list[Lag], within: bool, reason: str) -> None:
    found = judge("w", lags, LagLimit(30.0, 10))
    assert (found.within, found.reason) == (within, reason)


SECONDS_AGO = (datetime.now(UTC) - timedelta(seconds=60)).isoformat()


@pytest.mark.parametrize(
    ("unit", "max_s", "trouble"),
    [
        (UnitState("replicator", State.RUNNING, SECONDS_AGO), 0.0, ""),
        (UnitState("replicator", State.FINISHED, SECONDS_AGO), 0.0, ""),
        (
            UnitState("replicator", State.FAILED, SECONDS_AGO, "it broke", "mend it"),
            3600.0,
            f"failed since {SECONDS_AGO[:19]}: it broke: mend it",
        ),
        (UnitState("replicator", State.UNKNOWN, SECONDS_AGO, "nothing was heard"), 3600.0, ""),
        (
            UnitState("replicator", State.UNKNOWN, SECONDS_AGO, "nothing was heard"),
            30.0,
            f"unknown since {SECONDS_AGO[:19]}: nothing was heard",
        ),
        (UnitState("replicator", State.PAUSED, SECONDS_AGO), 30.0, f"paused since {SECONDS_AGO[:19]}"),
        (UnitState("replicator", State.UNKNOWN), 3600.0, "unknown"),
    ],
    ids=["running", "finished", "failed", "unheard of shortly", "unheard of", "paused", "unknown"],
)
def test_a_process_that_does_not_run_may_be_so_far_behind_as_it_is_away(unit: UnitState, max_s: float, trouble: str) -> None:
    assert trouble_of(unit, LagLimit(max_s)) == trouble


def tell(replication: Group, unit: str, **told: Any) -> None:
    """As the unit's process does; a worker holds its lease, unless it has ended."""

    async def write(stream: ChangeStream, bucket: StateBucket) -> None:
        record = ProcessRecord("h", 1, now(), now(), Activity.WORKING)
        await bucket.put(process_key(unit), replace(record, **told))
        if worker := worker_of_unit(unit):
            await bucket.put(lease_key(worker), LeaseRecord("h", 1, "now"))

    replication.with_broker(write)


@pytest.mark.parametrize("unit", ["replicator", "worker.w"])
def test_a_group_one_of_whose_processes_has_failed_does_not_keep_up(
    replication: Group, capsys: pytest.CaptureFixture[str], unit: str
) -> None:
    """The stream's end is no answer: nobody may be filling it."""
    replication.replicate()
    report(replication, "w", 0)
    tell(replication, "replicator")
    assert run(settings(replication), "", LagLimit(30.0), as_json=False) == 0
    tell(replication, unit, exit_code=70, fact="it broke", remedy="mend it")
    capsys.readouterr()
    assert run(settings(replication), "", LagLimit(3600.0), as_json=False) == 1
    assert f"{unit.removeprefix('worker.')}: " in capsys.readouterr().out


def test_a_group_that_is_only_copied_keeps_up_when_its_workers_have_applied_the_copy(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    async def copied(stream: ChangeStream, bucket: StateBucket) -> None:
        long_ago = "2026-01-01T00:00:00+00:00"
        await bucket.ensure(replication.settings().stream)
        record = SnapshotRecord("s", "0/80", CopyState.FINISHED, CopyMode.COPY, long_ago, long_ago, 40, "7", "shop", "earlier")
        await Ledger(bucket).store_snapshot(record)
        await bucket.put(worker_key("w"), WorkerReport(0, 40))

    replication.with_broker(copied)
    assert run(settings(replication), "", LagLimit(0.0), as_json=False) == 0
    assert capsys.readouterr().out == "w: it has applied the whole copy, which no changes follow\n"

    async def behind(stream: ChangeStream, bucket: StateBucket) -> None:
        await bucket.put(worker_key("w"), WorkerReport(0, 39))

    replication.with_broker(behind)
    assert run(settings(replication), "", LagLimit(30.0), as_json=False) == 1


def settings(replication: Group) -> GroupSettings:
    return GroupSettings(replication.name, replication.settings().log, replication.nats)


def report(replication: Group, worker: str, sequence: int) -> None:
    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        await bucket.put(worker_key(worker), WorkerReport(sequence, commit_lsn="0/1", stream_created=state.created))

    replication.with_broker(register)
    tell(replication, worker_unit(worker))


def test_a_group_without_workers_is_not_known_to_keep_up(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(settings(replication), "", LagLimit(30.0), as_json=False) == 1
    assert run(settings(replication), "lake", LagLimit(30.0), as_json=False) == 1
    assert capsys.readouterr().out == "no worker has started\nlake: it has never started\n"


def test_one_worker_that_is_behind_is_enough_and_the_others_can_be_asked_for(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'v')")
    replication.replicate()
    report(replication, "quick", 1)
    report(replication, "slow", 0)
    tell(replication, "replicator")
    assert run(settings(replication), "", LagLimit(3600.0), as_json=False) == 0
    assert run(settings(replication), "", LagLimit(0.0), as_json=False) == 1
    assert run(settings(replication), "", LagLimit(3600.0, 0), as_json=False) == 1
    assert run(settings(replication), "quick", LagLimit(0.0, 0), as_json=False) == 0
    capsys.readouterr()
    assert run(settings(replication), "", LagLimit(0.0), as_json=True) == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["within"], [worker["within"] for worker in content["workers"]]) == (False, [True, False])
    assert content["workers"][1]["messages"] == 1


def test_the_command_reads_durations_as_the_configuration_does(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    replication.replicate()
    report(replication, "quick", 0)
    tell(replication, "replicator")
    command = ["lag", f"--group={replication.name}", f"--nats-url={replication.nats.url}", "--max"]
    assert program.run([*command, "30s"]) == 0
    assert capsys.readouterr().out == "replicator: running\nquick: 0 messages, 0 B, 0.0 s behind\n"
    assert program.run([*command, "30"]) == 2
    assert "is not a duration" in capsys.readouterr().err
