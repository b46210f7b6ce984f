"""``pgsluice lag``: its exit code, and the line that says why."""

from __future__ import annotations

import json

import pytest

from pgsluice.console import program
from pgsluice.console.lag import LagLimit, judge, run
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.lag import NO_LAG, UNKNOWN_LAG, Lag
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.config.settings import GroupSettings
from tests.replicated_group import Group


@pytest.mark.parametrize(
    ("lags", "within", "reason"),
    [
        ([NO_LAG], True, "0 messages, 0 B, 0.0 s behind"),
        ([Lag(3, 100, 30.0)], True, "3 messages, 100 B, 30.0 s behind"),
        ([Lag(3, 100, 30.5)], False, "3 messages, 100 B, 30.5 s behind: more than 30 s"),
        ([Lag(11, 100, 1.0)], False, "11 messages, 100 B, 1.0 s behind: more than 10 messages"),
        ([Lag(11, 100, 31.0)], False, "11 messages, 100 B, 31.0 s behind: more than 30 s and more than 10 messages"),
        ([Lag(3)], False, "3 messages behind, and the first of them is gone from the stream"),
        ([UNKNOWN_LAG], False, "how far it is behind is not known: it is bound to another stream"),
        ([NO_LAG, Lag(5, 100, 40.0)], False, "5 messages, 100 B, 40.0 s behind: more than 30 s"),
    ],
)
def test_a_worker_is_judged_by_the_furthest_of_its_places(lags: list[Lag], within: bool, reason: str) -> None:
    found = judge("w", lags, LagLimit(30.0, 10))
    assert (found.within, found.reason) == (within, reason)


def settings(replication: Group) -> GroupSettings:
    return GroupSettings(replication.name, replication.settings().log, replication.nats)


def report(replication: Group, worker: str, sequence: int) -> None:
    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        await bucket.put(worker_key(worker), WorkerReport(sequence, commit_lsn="0/1", stream_created=state.created))

    replication.with_broker(register)


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
    command = ["lag", f"--group={replication.name}", f"--nats-url={replication.nats.url}", "--max"]
    assert program.run([*command, "30s"]) == 0
    assert capsys.readouterr().out == "quick: 0 messages, 0 B, 0.0 s behind\n"
    assert program.run([*command, "30"]) == 2
    assert "is not a duration" in capsys.readouterr().err
