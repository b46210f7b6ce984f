"""Orders to a group's units: idempotent, in the right order, and obeyed or said not to be."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.console.program import run as run_program
from pgsluice.console.units.orders import UnitOrder, UnitVerb, chosen_units, desired_after
from pgsluice.console.units.room import FOREVER_S, room_s
from pgsluice.shared.broker.bucket import BucketEnd, StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.broker.unit_records import (
    NOTHING_DESIRED,
    REPLICATOR_UNIT,
    Desired,
    DesiredRecord,
    ProcessRecord,
    desired_key,
    process_key,
    worker_of_unit,
    worker_unit,
)
from pgsluice.shared.broker.worker_records import LeaseRecord, WorkerReport, lease_key, worker_key
from pgsluice.shared.errors import UsageError
from pgsluice.shared.process.pulse import Activity, Pulse
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

UNITS = [REPLICATOR_UNIT, worker_unit("one"), worker_unit("two")]


class OrderedGroup:
    """Two workers of which something is known, and no process."""

    def __init__(self, nats: NatsServer, name: str) -> None:
        self.nats, self.name = nats, name
        ensure_bucket(nats.settings(), name)
        for worker in ("one", "two"):
            self.ask(lambda bucket, worker=worker: bucket.put(worker_key(worker), WorkerReport(0)))

    def ask(self, question: Callable[..., Any]) -> Any:
        async def call() -> Any:
            async with connected(self.nats.settings(), "test") as client:
                return await question(StateBucket(client, GroupNames(self.name)))

        return asyncio.run(call())

    def order(self, *arguments: str) -> int:
        return run_program([*arguments, "--group", self.name, "--nats-url", self.nats.url])

    def desired(self, unit: str) -> Desired:
        entry = self.ask(lambda bucket: bucket.read(desired_key(unit), DesiredRecord))
        return Desired.RUNNING if entry is None else entry.value.state

    def revision(self) -> int:
        end = self.ask(lambda bucket: bucket.end())
        assert isinstance(end, BucketEnd)
        return end.revision

    def tell(self, unit: str, activity: Activity, acknowledged: int, exit_code: int | None = None) -> None:
        """As the unit's process would."""

        async def write(bucket: StateBucket) -> None:
            pulse = Pulse()
            pulse.activity = activity
            report = ProcessReport(unit, pulse, lambda: bucket)
            report.acknowledged = acknowledged
            record: ProcessRecord = report._record()
            worker = worker_of_unit(unit)
            assert worker is not None
            await bucket.put(lease_key(worker), LeaseRecord("here", 1))
            await bucket.put(process_key(unit), replace(record, exit_code=exit_code))

        self.ask(write)


@pytest.fixture
def ordered(nats_server: NatsServer, group: str) -> OrderedGroup:
    return OrderedGroup(nats_server, group)


@given(st.lists(st.sampled_from(UnitVerb), min_size=1))
def test_each_verb_undoes_its_opposite_alone(verbs: list[UnitVerb]) -> None:
    desired = NOTHING_DESIRED
    for verb in verbs:
        desired = desired_after(verb, desired)
        assert desired_after(verb, desired) == desired, "idempotent"
    stops = [verb for verb in verbs if verb in (UnitVerb.STOP, UnitVerb.START)]
    pauses = [verb for verb in verbs if verb in (UnitVerb.PAUSE, UnitVerb.RESUME)]
    is_stopped, is_paused = stops[-1:] == [UnitVerb.STOP], pauses[-1:] == [UnitVerb.PAUSE]
    assert desired.state is (Desired.STOPPED if is_stopped else Desired.PAUSED if is_paused else Desired.RUNNING)
    assert desired_after(UnitVerb.START, desired).state is (Desired.PAUSED if is_paused else Desired.RUNNING)


@pytest.mark.parametrize(
    ("order", "units"),
    [
        (UnitOrder(UnitVerb.PAUSE), UNITS[1:]),
        (UnitOrder(UnitVerb.PAUSE, source=True), UNITS),
        (UnitOrder(UnitVerb.PAUSE, ("two",)), UNITS[2:]),
        (UnitOrder(UnitVerb.PAUSE, ("two",), source=True), [UNITS[0], UNITS[2]]),
        (UnitOrder(UnitVerb.RESUME), UNITS),
        (UnitOrder(UnitVerb.RESUME, ("one",)), [UNITS[1]]),
        (UnitOrder(UnitVerb.STOP), UNITS[1:]),
        (UnitOrder(UnitVerb.START), UNITS),
    ],
)
def test_an_order_is_for_the_units_that_it_names(order: UnitOrder, units: list[str]) -> None:
    assert chosen_units(order, UNITS) == units


def test_a_worker_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="one, two"):
        chosen_units(UnitOrder(UnitVerb.PAUSE, ("ONE",)), UNITS)


def test_an_order_is_written_once_and_undone_by_its_opposite(ordered: OrderedGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert ordered.order("pause", "--reason", "a release") == 0
    said = capsys.readouterr().out
    assert "worker one: its process does not run; it will rest when it is started" in said
    assert [ordered.desired(unit) for unit in UNITS] == [Desired.RUNNING, Desired.PAUSED, Desired.PAUSED]
    before = ordered.revision()
    assert ordered.order("pause", "--reason", "another") == 0
    assert ordered.order("start") == 0
    assert "its desired state is paused: 'pgsluice resume'" in capsys.readouterr().out
    assert ordered.revision() == before
    assert ordered.order("resume", "--worker", "one") == 0
    assert [ordered.desired(unit) for unit in UNITS[1:]] == [Desired.RUNNING, Desired.PAUSED]
    assert ordered.order("stop", "--source") == 0
    assert "retains WAL" in capsys.readouterr().out
    assert {ordered.desired(unit) for unit in UNITS} == {Desired.STOPPED}
    assert ordered.order("pause", "--worker", "one") == 0
    assert "worker one: its desired state is stopped: 'pgsluice start'" in capsys.readouterr().out
    assert ordered.order("start") == 0
    said = capsys.readouterr().out
    assert "worker one: its desired state is paused: 'pgsluice resume'" in said
    assert "a supervisor starts it again, or you do" in said
    assert [ordered.desired(unit) for unit in UNITS] == [Desired.RUNNING, Desired.PAUSED, Desired.PAUSED]
    assert ordered.order("resume") == 0
    assert {ordered.desired(unit) for unit in UNITS} == {Desired.RUNNING}


def test_a_wait_ends_when_the_units_have_obeyed_or_says_which_have_not(
    ordered: OrderedGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    ordered.tell(UNITS[1], Activity.WORKING, 0)
    assert ordered.order("pause", "--worker", "one", "--wait", "1s") == 75
    assert "worker one: pausing, and not yet paused" in capsys.readouterr().out
    revision = ordered.ask(lambda bucket: bucket.read(desired_key(UNITS[1]), DesiredRecord)).revision
    ordered.tell(UNITS[1], Activity.PAUSED, revision)
    assert ordered.order("pause", "--worker", "one", "--wait", "60s") == 0
    assert "worker one: paused" in capsys.readouterr().out
    ordered.tell(UNITS[1], Activity.ENDING, revision, exit_code=0)
    assert ordered.order("stop", "--worker", "one", "--wait", "60s") == 0
    assert "worker one: stopped" in capsys.readouterr().out


def test_an_unknown_group_is_refused(nats_server: NatsServer, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["pause", "--group", group, "--nats-url", nats_server.url]) == 2
    assert "has never been started" in capsys.readouterr().err


def test_help_loads_no_library() -> None:
    code = "import sys; from pgsluice.console.program import run; run(['pause', '--help']); sys.exit('nats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("free", "filled", "filled_s", "left"),
    [(100, 50, 3600.0, 7200.0), (0, 50, 3600.0, 0.0), (100, 0, 3600.0, FOREVER_S), (100, 50, 5.0, None)],
)
def test_room_is_what_is_free_at_the_rate_that_was(free: int, filled: int, filled_s: float, left: float | None) -> None:
    assert room_s(free, filled, filled_s) == left
