"""What is wrong with a group, by the facts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pgsluice.shared.alerts.conditions import AlertName, AlertSeverity, Condition, GroupFacts, find_conditions, find_shortages
from pgsluice.shared.alerts.slot_record import SlotRecord
from pgsluice.shared.broker.halt import Halt
from pgsluice.shared.broker.lag import NO_LAG, UNKNOWN_LAG, Lag
from pgsluice.shared.broker.ledger import Phase, TableRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.broker.worker_records import MissedReport
from pgsluice.shared.pipelines.run_facts import RunFacts
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunRecord, RunState
from pgsluice.shared.pipelines.run_requests import AskedBy, RunRequest, RunRequests, RunWish, Ticks
from pgsluice.shared.units.unit_states import State, UnitState
from tests.misses import no_misses
from tests.source_code import REPOSITORY

PAGE = REPOSITORY / "docs" / "how-to" / "alert-messages.md"
AT = "2026-01-31T12:00:00+00:00"
WELL = SlotRecord("s", "reserved", "", 1 << 20, None)


COPIED = TableRecord(7, "public", "t", Phase.FINISHED_COPY, AT, "s", "0/1")
MISSED = MissedReport(7, "public.t", 3, AT, expected=False, updates=1, deletes=2, position="0/3E8:1")


def facts(**changed: Any) -> GroupFacts:
    fields: dict[str, Any] = {
        "halt": None,
        "slot": WELL,
        "units": (UnitState("replicator", State.RUNNING), UnitState("worker.lake", State.COPYING)),
        "tables": (TableRecord(1, "public", "t", Phase.READY, AT),),
        "streams": {"changes": StreamState("c", 1, 9, 9, 80, 100)},
        "lags": {"lake": Lag(1, 1, 300.0)},
        "letters": {"lake": 0},
    }
    return GroupFacts(**(fields | changed))


def runs(
    state: RunState = RunState.FINISHED, *, tick_age_s: float | None = None, open_since: str = "", wish: RunWish = RunWish.RUN
) -> RunFacts:
    """Of a pipeline whose last tick was at 13:00; ``open_since`` is the tick of a request that is not done."""
    record = PipelineRecord("ratings", "f", "s", runs=(RunRecord(1, state, is_full=True, started_at=AT),))
    asked = RunRequest(open_since, full=False, by=AskedBy.SCHEDULE, requested_at=open_since)
    ticks = Ticks("every 3600 s", AT, "2026-01-31T13:00:00+00:00")
    return RunFacts(record, RunRequests(wish, 0, (asked,) if open_since else (), ticks), tick_age_s)


def found(**changed: Any) -> list[tuple[str, str, str]]:
    return [(each.alert.value, each.subject, each.severity.value) for each in find_conditions(facts(**changed), 300.0).conditions]


def test_a_group_that_is_well_has_no_conditions() -> None:
    assert found() == []
    assert find_conditions(facts(), 300.0).unknown == frozenset()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"halt": Halt("the stream lost messages", "drop it", AT)}, ("group-halted", "group", "critical")),
        ({"slot": SlotRecord("s", "lost", "wal_removed")}, ("slot-lost", "s", "critical")),
        ({"slot": SlotRecord("s", "unreserved", "", 100, 100)}, ("slot-at-risk", "s", "critical")),
        ({"slot": SlotRecord("s", "extended", "", 900, 100)}, ("slot-at-risk", "s", "critical")),
        ({"units": (UnitState("worker.lake", State.FAILED),)}, ("unit-failed", "lake", "critical")),
        ({"units": (UnitState("worker.lake", State.FAILING),)}, ("unit-failing", "lake", "warning")),
        ({"units": (UnitState("replicator", State.UNKNOWN),)}, ("unit-down", "replicator", "critical")),
        ({"tables": (TableRecord(1, "public", "t", Phase.ERRORED, AT),)}, ("table-errored", "public.t", "warning")),
        ({"letters": {"lake": 3}}, ("dead-letters", "lake", "warning")),
        ({"tables": (COPIED,), "missed": {"lake": (MISSED,)}}, ("rows-missing", "lake", "warning")),
        ({"lags": {"lake": Lag(1, 1, 300.5)}}, ("lag", "lake", "warning")),
        ({"streams": {"changes": StreamState("c", 1, 9, 9, 81, 100)}}, ("stream-nearly-full", "changes", "warning")),
        ({"runs": runs(RunState.FAILED)}, ("run-failed", "ratings", "warning")),
        ({"paused_subscriptions": {"5f0c": "it failed"}}, ("subscription-paused", "5f0c", "warning")),
        ({"runs": runs(tick_age_s=121.0)}, ("run-late", "ratings", "warning")),
        ({"runs": runs(tick_age_s=-5.0, open_since="2026-01-31T12:00:00+00:00")}, ("run-late", "ratings", "warning")),
    ],
)
def test_each_thing_that_is_wrong_is_a_condition(changed: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert found(**changed) == [expected]


def test_of_rows_that_are_missing_kinds_tables_and_the_way_to_the_key_are_named() -> None:
    other = replace(MISSED, oid=8, table="public.u")
    tables = (COPIED, replace(COPIED, oid=8, table="u"))
    [condition] = find_conditions(facts(tables=tables, missed={"lake": (MISSED, other)}), 300.0).conditions
    assert "3 changes (1 updates, 2 deletes) of table public.t" in condition.fact
    assert "and of 1 tables more" in condition.fact
    assert "pgsluice messages --from 0/3E8:1 --limit 1" in condition.remedy
    assert "pgsluice tables resync public.t" in condition.remedy


@pytest.mark.parametrize(
    "changed",
    [
        {"slot": SlotRecord("s", "extended", "", 800, 200)},
        {"slot": SlotRecord("s", "reserved", "", None, 0)},
        {"tables": (COPIED,), "missed": {"lake": (replace(MISSED, expected=True),)}},
        {"missed": {"lake": (MISSED,)}},
        {"lags": {"lake": UNKNOWN_LAG, "file": NO_LAG, "gone": Lag(7)}},
        {"streams": {"changes": StreamState("c", 1, 9, 9, 81, -1)}},
        {"runs": runs(RunState.CANCELLED, tick_age_s=119.0)},
        {"runs": runs(tick_age_s=9999.0, wish=RunWish.PAUSE)},
        {"runs": runs(tick_age_s=-5.0, open_since="2026-01-31T13:00:00+00:00")},
        {"runs": RunFacts(None, RunRequests(), None)},
        {"units": tuple(UnitState("replicator", state) for state in (State.STOPPED, State.PAUSED, State.FINISHED, State.DRAFT))},
    ],
)
def test_what_is_as_somebody_wants_it_or_not_known_is_no_condition(changed: dict[str, Any]) -> None:
    assert found(**changed) == []


def test_of_a_slot_that_nobody_told_of_nothing_is_known() -> None:
    findings = find_conditions(facts(slot=None), 300.0)
    assert findings.unknown == {AlertName.SLOT_LOST, AlertName.SLOT_AT_RISK}


def test_every_alert_is_as_bad_and_told_as_soon_as_the_page_says() -> None:
    """But for a test, which is told when somebody asks for it."""
    rows = re.findall(rf"^\| `([\w-]+)` \|.*\| ({'|'.join(AlertSeverity)}) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    documented = {(name, severity, told == "at once" and name != AlertName.TEST) for name, severity, told in rows}
    conditions = [Condition(name, "x", "fact") for name in AlertName]
    derived = {(each.alert.value, each.severity.value, each.is_told_at_once) for each in conditions}
    no_misses(derived - documented, f"alert, severity, told at once: not so in the table of {PAGE.name}")
    no_misses(documented - derived, f"alert, severity, told at once: in the table of {PAGE.name}, and not so")


@pytest.mark.parametrize(
    ("lost", "setting"),
    [
        ("wal_removed", "raise max_slot_wal_keep_size"),
        ("idle_timeout", "set idle_replication_slot_timeout to 0"),
        ("wal_level_insufficient", "set wal_level to logical"),
    ],
)
def test_a_lost_slot_is_told_with_what_to_set_for_the_next_one(lost: str, setting: str) -> None:
    [condition] = find_conditions(facts(slot=SlotRecord("s", "lost", lost)), 300.0).conditions
    assert condition.remedy.startswith(f"{setting} at the source, then run 'pgsluice drop'")


def test_what_runs_out_is_no_more_what_has_run_out() -> None:
    streams = {"changes": StreamState("c", 1, 9, 9, 81, 100), "snapshot": StreamState("c", 1, 9, 9, 10, 100)}
    told = find_shortages(SlotRecord("s", "unreserved", "", 100, 100), streams)
    assert [(each.alert, each.subject) for each in told] == [("slot-at-risk", "s"), ("stream-nearly-full", "changes")]
    assert find_shortages(SlotRecord("s", "lost", "wal_removed"), {}) == []
    assert find_shortages(None, {}) == []
