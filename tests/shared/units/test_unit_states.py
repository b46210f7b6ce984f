"""The state of a unit as a table: what is desired, what its process told, and what follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.broker.unit_records import Desired, DesiredRecord, ProcessRecord, WaitRecord, worker_unit
from pgsluice.shared.errors import Cause
from pgsluice.shared.process.pulse import Activity
from pgsluice.shared.units.unit_states import LONGEST_SILENCE_S, SILENT_WORKER_S, STUCK_S, State, UnitFacts, unit_state
from tests.misses import no_misses

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UNIT = worker_unit("w")
ALIVE = ProcessRecord("host", 7, NOW.isoformat(), NOW.isoformat(), Activity.WORKING, NOW.isoformat(), acknowledged=5)
WAIT = WaitRecord(Cause.TARGET, "the target is away: wait", NOW.isoformat(), NOW.isoformat())
STUCK = replace(ALIVE, idle=False, progressed_at=(NOW - timedelta(seconds=STUCK_S + 1)).isoformat())
ENDED = replace(ALIVE, activity=Activity.ENDING, exit_code=0)


def paused(**process: Any) -> UnitFacts:
    return desired(Desired.PAUSED, **process)


def desired(state: Desired, **process: Any) -> UnitFacts:
    order = DesiredRecord(state, "a release", "ann@shop", NOW.isoformat())
    return UnitFacts(UNIT, order, 5, replace(ALIVE, **process), holds_lease=process.get("exit_code") is None)


def told(process: ProcessRecord | None, **facts: Any) -> UnitFacts:
    is_alive = process is not None and process.exit_code is None
    return UnitFacts(UNIT, process=process, **({"holds_lease": is_alive} | facts))


SILENT: dict[str, Any] = {"process_age_s": LONGEST_SILENCE_S + 1, "holds_lease": False}

TABLE: list[tuple[str, UnitFacts, State]] = [
    ("nothing is known", told(None), State.DRAFT),
    ("the lease is taken, nothing told yet", told(None, holds_lease=True), State.STARTING),
    ("an earlier version ran", told(None, was_started=True), State.UNKNOWN),
    ("it has begun", told(replace(ALIVE, activity=Activity.STARTING)), State.STARTING),
    ("it has begun, and waits", told(replace(ALIVE, activity=Activity.STARTING, wait=WAIT)), State.FAILING),
    ("it works", told(ALIVE), State.RUNNING),
    ("tables are copied", told(ALIVE, is_copying=True), State.COPYING),
    ("the target is away", told(replace(ALIVE, wait=WAIT), is_copying=True), State.FAILING),
    ("it has work and does not move", told(STUCK), State.FAILING),
    ("it has no work and has not moved", told(replace(STUCK, idle=True)), State.RUNNING),
    ("it was resumed and rests still", desired(Desired.RUNNING, activity=Activity.PAUSED), State.STARTING),
    ("a signal came", told(replace(ALIVE, activity=Activity.ENDING)), State.STOPPING),
    ("a pause, not seen", paused(acknowledged=4), State.PAUSING),
    ("a pause, seen", paused(), State.PAUSING),
    ("a pause of one that waits", paused(wait=WAIT), State.PAUSING),
    ("a pause in force", paused(activity=Activity.PAUSED), State.PAUSED),
    ("a pause in force by an earlier order", paused(activity=Activity.PAUSED, acknowledged=4), State.PAUSING),
    ("paused, and a signal came", paused(activity=Activity.ENDING), State.STOPPING),
    ("paused, and it ended", paused(activity=Activity.ENDING, exit_code=0), State.STOPPED),
    ("to be stopped", desired(Desired.STOPPED), State.STOPPING),
    ("stopped as was wanted", desired(Desired.STOPPED, exit_code=0), State.STOPPED),
    ("stopped, while it waited", desired(Desired.STOPPED, exit_code=75), State.STOPPED),
    ("stopped, and killed before", replace(desired(Desired.STOPPED), **SILENT), State.STOPPED),
    (
        "to be stopped, silent, with its lease",
        replace(desired(Desired.STOPPED), **(SILENT | {"holds_lease": True})),
        State.UNKNOWN,
    ),
    ("to be stopped, never started", UnitFacts(UNIT, DesiredRecord(Desired.STOPPED), 5), State.STOPPED),
    ("ended by a signal", told(ENDED), State.STOPPED),
    ("did what it was started for", told(replace(ENDED, is_finished=True)), State.FINISHED),
    ("to be started again", told(replace(ENDED, exit_code=75, fact="the target is away")), State.FAILING),
    ("needs a person", told(replace(ENDED, exit_code=70, fact="the slot is lost")), State.FAILED),
    ("wrongly configured", told(replace(ENDED, exit_code=2, fact="no group")), State.FAILED),
    ("needs a person, and was stopped", desired(Desired.STOPPED, exit_code=70), State.FAILED),
    ("killed", told(ALIVE, **SILENT), State.UNKNOWN),
    ("killed a moment ago, and its lease has ended", told(ALIVE, holds_lease=False), State.UNKNOWN),
    ("a replicator has no lease", UnitFacts("replicator", process=ALIVE), State.RUNNING),
    ("killed while paused", replace(paused(activity=Activity.PAUSED), **SILENT), State.UNKNOWN),
    ("ended long ago", told(replace(ENDED, exit_code=70), **SILENT), State.FAILED),
]


@pytest.mark.parametrize(("facts", "state"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_state_follows_from_the_facts(facts: UnitFacts, state: State) -> None:
    assert unit_state(facts).state is state


def test_every_state_is_in_the_table() -> None:
    no_misses(set(State) - {state for *_, state in TABLE}, "no row of the table leads to it: add one")


def test_a_state_comes_with_the_fact_behind_it_and_a_remedy() -> None:
    failing = unit_state(told(replace(ALIVE, wait=WAIT)))
    assert (failing.fact, failing.cause, failing.since, failing.next_attempt_at) == (
        "the target is away: wait",
        Cause.TARGET,
        WAIT.since,
        WAIT.next_attempt_at,
    )
    resting = unit_state(paused(activity=Activity.PAUSED))
    assert (resting.fact, resting.since) == ("by ann@shop: a release", NOW.isoformat())
    assert "pgsluice resume" in resting.remedy
    failed = unit_state(told(replace(ENDED, exit_code=70, fact="the slot is lost", remedy="start anew")))
    assert (failed.fact, failed.remedy) == ("the slot is lost", "start anew")
    assert "pgsluice forget --worker w" in unit_state(told(ALIVE, process_age_s=SILENT_WORKER_S + 1, holds_lease=False)).remedy
    assert "forget" not in unit_state(told(ALIVE, **SILENT)).remedy


processes = st.none() | st.builds(
    ProcessRecord,
    st.just("host"),
    st.integers(1, 9),
    st.just(NOW.isoformat()),
    st.just(NOW.isoformat()),
    st.sampled_from(Activity),
    progressed_at=st.sampled_from([NOW.isoformat(), STUCK.progressed_at, ""]),
    idle=st.booleans(),
    wait=st.none() | st.just(WAIT),
    acknowledged=st.integers(0, 9),
    exit_code=st.none() | st.sampled_from([0, 2, 70, 75]),
    is_finished=st.booleans(),
)
facts = st.builds(
    UnitFacts,
    st.sampled_from([UNIT, "replicator"]),
    st.builds(DesiredRecord, st.sampled_from(Desired)),
    st.integers(0, 9),
    processes,
    st.sampled_from([0.0, LONGEST_SILENCE_S + 1, SILENT_WORKER_S + 1]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(facts)
def test_there_is_a_state_for_whatever_is_found(found: UnitFacts) -> None:
    state = unit_state(found)
    assert state.unit == found.unit
    if state.state is State.PAUSED:
        assert found.desired.state is Desired.PAUSED
        assert found.process is not None
        assert found.process.acknowledged >= found.revision
    if state.state in (State.RUNNING, State.COPYING):
        assert found.process is not None
        assert found.process.exit_code is None
        assert found.process_age_s <= LONGEST_SILENCE_S
