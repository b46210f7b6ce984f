"""What is wrong with a group, by the facts."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.shared.alerts.conditions import AlertName, Condition, GroupFacts, Severity, find_conditions
from pgsluice.shared.alerts.slot_record import SlotRecord
from pgsluice.shared.broker.halt import Halt
from pgsluice.shared.broker.lag import NO_LAG, UNKNOWN_LAG, Lag
from pgsluice.shared.broker.ledger import Phase, TableRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.units.unit_states import State, UnitState

AT = "2026-01-31T12:00:00+00:00"
WELL = SlotRecord("s", "reserved", "", 1 << 20, None)


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
        ({"lags": {"lake": Lag(1, 1, 300.5)}}, ("lag", "lake", "warning")),
        ({"streams": {"changes": StreamState("c", 1, 9, 9, 81, 100)}}, ("stream-nearly-full", "changes", "warning")),
    ],
)
def test_each_thing_that_is_wrong_is_a_condition(changed: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert found(**changed) == [expected]


@pytest.mark.parametrize(
    "changed",
    [
        {"slot": SlotRecord("s", "extended", "", 800, 200)},
        {"slot": SlotRecord("s", "reserved", "", None, 0)},
        {"lags": {"lake": UNKNOWN_LAG, "file": NO_LAG, "gone": Lag(7)}},
        {"streams": {"changes": StreamState("c", 1, 9, 9, 81, -1)}},
        {"units": tuple(UnitState("replicator", state) for state in (State.STOPPED, State.PAUSED, State.FINISHED, State.DRAFT))},
    ],
)
def test_what_is_as_somebody_wants_it_or_not_known_is_no_condition(changed: dict[str, Any]) -> None:
    assert found(**changed) == []


def test_of_a_slot_that_nobody_told_of_nothing_is_known() -> None:
    findings = find_conditions(facts(slot=None), 300.0)
    assert findings.unknown == {AlertName.SLOT_LOST, AlertName.SLOT_AT_RISK}


def test_every_alert_has_a_severity_and_a_time() -> None:
    severities = {name: Condition(name, "x", "fact").severity for name in AlertName}
    assert set(severities.values()) == set(Severity)
    at_once = {name for name in AlertName if Condition(name, "x", "fact").is_told_at_once}
    assert at_once == {
        AlertName.GROUP_HALTED,
        AlertName.SLOT_LOST,
        AlertName.UNIT_FAILED,
        AlertName.TABLE_ERRORED,
        AlertName.DEAD_LETTERS,
    }
