"""The conditions of a group that fire now: a pure function of the facts that its bucket and streams hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pgsluice.shared.alerts.missing_rows import counted, is_divergence, missed_remedy
from pgsluice.shared.alerts.slot_record import SlotRecord, remedy_of_loss
from pgsluice.shared.broker.halt import Halt
from pgsluice.shared.broker.lag import Lag
from pgsluice.shared.broker.ledger import Phase, TableRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.broker.worker_records import MissedReport
from pgsluice.shared.pipelines.run_facts import RunFacts
from pgsluice.shared.pipelines.run_records import RunState
from pgsluice.shared.units.unit_states import State, UnitState

NEARLY_FULL = 0.8
LATE_TICK_S = 120.0
"""Delay after which no process executes a pipeline that is due: an executor checks once a second, another takes over
within seconds."""
LITTLE_SAFE_WAL = 0.2
"""Remaining share of the WAL that the source may keep for the slot."""


class AlertName(StrEnum):
    """A closed set, which receivers may sort by."""

    GROUP_HALTED = "group-halted"
    SLOT_LOST = "slot-lost"
    SLOT_AT_RISK = "slot-at-risk"
    UNIT_FAILED = "unit-failed"
    UNIT_FAILING = "unit-failing"
    UNIT_DOWN = "unit-down"
    TABLE_ERRORED = "table-errored"
    DEAD_LETTERS = "dead-letters"
    ROWS_MISSING = "rows-missing"
    LAG = "lag"
    STREAM_NEARLY_FULL = "stream-nearly-full"
    RUN_FAILED = "run-failed"
    RUN_LATE = "run-late"
    SUBSCRIPTION_PAUSED = "subscription-paused"
    TEST = "test"
    """No problem: an operator tests whether alerts arrive."""


class AlertSeverity(StrEnum):
    """CRITICAL: data is lost, or will be, or nothing continues until an operator acts."""

    WARNING = "warning"
    CRITICAL = "critical"


_CRITICAL = frozenset(
    {AlertName.GROUP_HALTED, AlertName.SLOT_LOST, AlertName.SLOT_AT_RISK, AlertName.UNIT_FAILED, AlertName.UNIT_DOWN}
)
_AT_ONCE = frozenset(
    {
        AlertName.GROUP_HALTED,
        AlertName.SLOT_LOST,
        AlertName.UNIT_FAILED,
        AlertName.TABLE_ERRORED,
        AlertName.DEAD_LETTERS,
        AlertName.ROWS_MISSING,
        AlertName.RUN_FAILED,
        AlertName.SUBSCRIPTION_PAUSED,
    }
)
"""Conditions that do not resolve within a minute; all others are sent only when they have lasted."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong. ``subject`` is a table, a worker, a subscription, a stream or the slot: with ``alert`` it is the
    condition's identity. ``fact`` and ``remedy`` are sentences without row values and secrets."""

    alert: AlertName
    subject: str
    fact: str
    remedy: str = ""

    @property
    def severity(self) -> AlertSeverity:
        return AlertSeverity.CRITICAL if self.alert in _CRITICAL else AlertSeverity.WARNING

    @property
    def is_told_at_once(self) -> bool:
        return self.alert in _AT_ONCE


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts of one check. ``slot`` is None when it is not known; ``lags`` and ``letters`` are by worker."""

    halt: Halt | None
    slot: SlotRecord | None
    units: tuple[UnitState, ...]
    tables: tuple[TableRecord, ...]
    streams: Mapping[str, StreamState]
    lags: Mapping[str, Lag]
    letters: Mapping[str, int]
    missed: Mapping[str, tuple[MissedReport, ...]] = field(default_factory=dict)
    """Worker → its reports."""
    runs: RunFacts | None = None
    """None in a group that is no SQL pipeline's."""
    paused_subscriptions: Mapping[str, str] = field(default_factory=dict)
    """Subscription id → why the worker stopped posting, although no operator paused it."""


@dataclass(frozen=True, slots=True)
class AlertFindings:
    """``unknown`` are alerts that this check could not evaluate."""

    conditions: tuple[Condition, ...]
    unknown: frozenset[AlertName] = frozenset()


def find_conditions(facts: GroupFacts, longest_lag_s: float) -> AlertFindings:
    """Pure."""
    conditions = [
        *_halt(facts.halt),
        *_slot(facts.slot),
        *(condition for unit in facts.units for condition in _unit(unit)),
        *(_errored(table) for table in facts.tables if table.phase is Phase.ERRORED),
        *(_letters(worker, count) for worker, count in sorted(facts.letters.items()) if count),
        *_missing_rows(facts),
        *(condition for worker, lag in sorted(facts.lags.items()) for condition in _lag(worker, lag, longest_lag_s)),
        *(condition for name, state in sorted(facts.streams.items()) for condition in _stream(name, state)),
        *(() if facts.runs is None else _runs(facts.runs)),
        *(_paused(identifier, reason) for identifier, reason in sorted(facts.paused_subscriptions.items())),
    ]
    unknown = frozenset({AlertName.SLOT_LOST, AlertName.SLOT_AT_RISK} if facts.slot is None else ())
    return AlertFindings(tuple(conditions), unknown)


def find_shortages(slot: SlotRecord | None, streams: Mapping[str, StreamState]) -> list[Condition]:
    """Returns the conditions about space that runs out while nothing has failed yet: WAL that the source keeps, and
    room in streams. Pure."""
    at_risk = [condition for condition in _slot(slot) if condition.alert is AlertName.SLOT_AT_RISK]
    return [*at_risk, *(condition for name, state in sorted(streams.items()) for condition in _stream(name, state))]


def _halt(halt: Halt | None) -> Iterator[Condition]:
    if halt is not None:
        yield Condition(AlertName.GROUP_HALTED, "group", halt.fact, halt.remedy)


def _slot(slot: SlotRecord | None) -> Iterator[Condition]:
    if slot is None:
        return
    if slot.lost:
        remedy = f"{remedy_of_loss(slot.lost)} at the source, then run 'pgsluice drop' and start again with an empty target"
        yield Condition(AlertName.SLOT_LOST, slot.name, f"replication slot {slot.name} is lost ({slot.lost})", remedy)
    elif slot.wal_status == "unreserved" or _has_little_room(slot):
        left = "" if slot.safe_wal_bytes is None else f", {max(0, slot.safe_wal_bytes)} bytes of WAL before it is invalidated"
        fact = f"replication slot {slot.name} may be lost soon: wal_status {slot.wal_status}{left}"
        remedy = "see why the replicator does not confirm, and raise max_slot_wal_keep_size at the source"
        yield Condition(AlertName.SLOT_AT_RISK, slot.name, fact, remedy)


def _has_little_room(slot: SlotRecord) -> bool:
    if slot.safe_wal_bytes is None or slot.lag_bytes is None:
        return False
    return slot.safe_wal_bytes < LITTLE_SAFE_WAL * (slot.safe_wal_bytes + slot.lag_bytes)


def _unit(unit: UnitState) -> Iterator[Condition]:
    alert = {
        State.FAILED: AlertName.UNIT_FAILED,
        State.FAILING: AlertName.UNIT_FAILING,
        State.UNKNOWN: AlertName.UNIT_DOWN,
    }.get(unit.state)
    if alert is not None:
        yield Condition(alert, unit.name, unit.fact, unit.remedy)


def _errored(table: TableRecord) -> Condition:
    return Condition(AlertName.TABLE_ERRORED, table.qualified_name, table.error, table.remedy)


def _letters(worker: str, count: int) -> Condition:
    fact = f"worker {worker} has {count} dead letters: changes that it could not apply"
    return Condition(AlertName.DEAD_LETTERS, worker, fact, "see 'pgsluice dead list'; replay them when the cause is removed")


def _missing_rows(facts: GroupFacts) -> Iterator[Condition]:
    """Yields one for each worker: a target that another client writes to rarely differs in one table alone."""
    tables = {table.oid: table for table in facts.tables}
    for worker, reports in sorted(facts.missed.items()):
        diverged = [each for each in reports if is_divergence(each, tables)]
        if diverged:
            first = diverged[0]
            more = f", and of {len(diverged) - 1} tables more" if len(diverged) > 1 else ""
            changes = counted(first.changes, first.updates, first.deletes)
            fact = f"{changes} of table {first.table} met no row in worker {worker}'s sink{more}: source and target differ"
            yield Condition(AlertName.ROWS_MISSING, worker, fact, missed_remedy(tables[first.oid].qualified_name, first.position))


def _lag(worker: str, lag: Lag, longest_s: float) -> Iterator[Condition]:
    """A lag that is not known is no lag; why it is not known is another alert's."""
    if lag.seconds is not None and lag.seconds > longest_s:
        fact = f"worker {worker} is {lag.seconds:.0f} s and {lag.messages} messages behind"
        yield Condition(AlertName.LAG, worker, fact, "find the cause: 'pgsluice status'")


def _stream(name: str, state: StreamState) -> Iterator[Condition]:
    if state.max_bytes > 0 and state.bytes > NEARLY_FULL * state.max_bytes:
        fact = f"stream {name} is {state.bytes / state.max_bytes:.0%} full; when it is full, the source retains WAL"
        yield Condition(AlertName.STREAM_NEARLY_FULL, name, fact, "start the workers that lag, or raise stream-max-bytes")


def _paused(identifier: str, reason: str) -> Condition:
    fact = f"subscription {identifier} is paused: {reason}"
    remedy = f"'pgsluice subscriptions resume {identifier}' when the cause is removed, or unsubscribe it"
    return Condition(AlertName.SUBSCRIPTION_PAUSED, identifier, fact, remedy)


def _runs(facts: RunFacts) -> Iterator[Condition]:
    newest = None if facts.record is None else facts.record.newest
    if newest is not None and newest.state is RunState.FAILED:
        fact = f"run {newest.number} of pipeline {facts.pipeline} failed: {newest.reason}"
        yield Condition(AlertName.RUN_FAILED, facts.pipeline, fact, "remove the cause; the next run takes it up")
    if not facts.has_ticks or facts.tick_age_s is None:
        return
    if facts.tick_age_s > LATE_TICK_S:
        fact = f"pipeline {facts.pipeline} was due {facts.tick_age_s:.0f} s ago, and no process executes it"
        yield Condition(AlertName.RUN_LATE, facts.pipeline, fact, "start 'pgsluice schedule', or 'pgsluice server --run'")
    elif facts.overtaken:
        fact = f"a run of pipeline {facts.pipeline} was not done when its next tick came"
        yield Condition(AlertName.RUN_LATE, facts.pipeline, fact, "see 'pgsluice runs list'; give it more time between ticks")
