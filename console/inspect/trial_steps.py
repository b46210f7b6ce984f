"""The effect of each rule on one change, in file order, and the lines that a worker would hand to its sink."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pgsluice.rules.rule import Filter, Rule
from pgsluice.rules.ruleset import RuleSet, TableRules
from pgsluice.rules.transformation import Transformation
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, MessageChanges, TableChanges
from pgsluice.shared.wire.table import UNCHANGED, Value
from pgsluice.worker.sinks.lines.json_lines import encode_lines

_OPERATIONS = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}


class StepOutcome(StrEnum):
    """The outcome of one rule. REJECTED: it could not process the row, which becomes a dead letter."""

    KEPT = "kept"
    CHANGED = "changed"
    UNTOUCHED = "untouched"
    TURNED = "turned"
    DROPPED = "dropped"
    REJECTED = "rejected"


class ChangeOutcome(StrEnum):
    """The outcome of rules and routes together."""

    PASSED = "passed"
    DROPPED = "dropped"
    REJECTED = "not processed"


@dataclass(frozen=True, slots=True)
class ValueChange:
    """``old_row``: of the old row's image. A value is None for NULL; ``was_sent`` is False for a value that the server
    left out."""

    column: str
    old_row: bool
    before: str | None
    after: str | None
    was_sent: bool = True


@dataclass(frozen=True, slots=True)
class TrialStep:
    """The effect of one rule. ``place`` is its file and line, ``detail`` a reason or the operation that it turned into."""

    place: str
    outcome: StepOutcome
    detail: str = ""
    values: tuple[ValueChange, ...] = ()


@dataclass(frozen=True, slots=True)
class TriedChange:
    """``lines`` are JSON lines of the resulting change, more than one where routes send it to several tables."""

    steps: tuple[TrialStep, ...]
    outcome: ChangeOutcome
    lines: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Alone:
    """A single rule."""

    rule: Rule
    rules: RuleSet


class Trial:
    """Tries one transformation on any number of changes."""

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation
        self._entries = [
            (entry.pattern, [_Alone(rule, _alone(transformation.rules, entry, rule)) for rule in entry.rules])
            for entry in transformation.rules.entries
        ]
        self._unlisted = _without_rules(transformation.rules)

    def of(self, message: MessageChanges) -> TriedChange:
        """``message`` holds one change of one table. Raises TerminalError when rules or routes do not fit the table."""
        (changes,) = message.parts
        assert isinstance(changes, TableChanges)
        steps = tuple(self._steps(changes))
        transformed, rejected = self._transformation.apply(message)
        lines = tuple(line for text in encode_lines(transformed) for line in text.splitlines())
        outcome = ChangeOutcome.REJECTED if rejected else ChangeOutcome.PASSED if lines else ChangeOutcome.DROPPED
        return TriedChange(steps, outcome, lines)

    def of_all(self, messages: Sequence[MessageChanges], most_s: float) -> list[TriedChange]:
        """Tries all messages; call it in a separate thread, since a pattern may take its time for each value. Raises
        UsageError when it takes longer."""
        ends_at, tried = time.monotonic() + most_s, list[TriedChange]()
        for message in messages:
            if time.monotonic() > ends_at:
                raise UsageError(
                    f"the rules took more than {most_s:g} s for {len(tried)} of {len(messages)} changes",
                    "try them on fewer changes, or correct the slow pattern",
                )
            tried.append(self.of(message))
        return tried

    def _steps(self, changes: TableChanges) -> Iterator[TrialStep]:
        table = changes.table
        for pattern, steps in self._entries:
            if not pattern.matches(table.schema, table.name):
                continue
            for step in steps:
                bound = step.rules.bind(table)
                if bound is None:
                    continue
                outcome = bound.apply(changes)
                if outcome.rejected:
                    yield TrialStep(str(step.rule.place), StepOutcome.REJECTED, outcome.rejected[0].reason)
                    return
                if outcome.changes is None:
                    yield TrialStep(str(step.rule.place), StepOutcome.DROPPED)
                    return
                yield _step(step.rule, changes, outcome.changes)
                changes = outcome.changes
        yield from self._clearing(changes)

    def _clearing(self, changes: TableChanges) -> Iterator[TrialStep]:
        """Yields the treatment of columns that no rule names."""
        table = changes.table
        rest = self._unlisted.bind(table)
        if rest is not None:
            after = rest.apply(changes).changes
            values = () if after is None else tuple(_value_changes(changes, after))
            if values:
                place = next(each.place for each in self._unlisted.entries if each.pattern.matches(table.schema, table.name))
                yield TrialStep(f"{place}: unlisted", StepOutcome.CHANGED, "", values)


def _alone(rules: RuleSet, entry: TableRules, rule: Rule) -> RuleSet:
    return RuleSet(rules.path, f"{rules.hash} {rule.place}", (TableRules(entry.place, entry.pattern, (rule,)),))


def _without_rules(rules: RuleSet) -> RuleSet:
    """Returns the treatment of columns that no rule names, alone."""
    entries = tuple(
        replace(entry, rules=(), kept=(*entry.kept, *(named for rule in entry.rules for named in rule.named)))
        for entry in rules.entries
    )
    return RuleSet(rules.path, f"{rules.hash} unlisted", entries)


def _step(rule: Rule, before: TableChanges, after: TableChanges) -> TrialStep:
    """Returns the step of one change that continues."""
    place, values = str(rule.place), tuple(_value_changes(before, after))
    if before.operations != after.operations:
        was, is_now = (_OPERATIONS[each.operations[0]] for each in (before, after))
        return TrialStep(place, StepOutcome.TURNED, f"{was} {is_now}", values)
    # a single kind: a filter that leaves a row unchanged has no other effect to report
    if isinstance(rule, Filter):
        return TrialStep(place, StepOutcome.KEPT)
    return TrialStep(place, StepOutcome.CHANGED if values else StepOutcome.UNTOUCHED, "", values)


def _value_changes(before: TableChanges, after: TableChanges) -> Iterator[ValueChange]:
    images = [(False, before.new, after.new)] if after.operations[0] != DELETE else []
    if before.old is not None and after.old is not None and after.old_kinds is not None and after.old_kinds[0] != NO_OLD_ROW:
        images.append((True, before.old, after.old))
    for is_old, was, becomes in images:
        for column, (value,), (new_value,) in zip(before.table.columns, was, becomes, strict=True):
            if value != new_value:
                yield ValueChange(column.name, is_old, _text(value), _text(new_value), was_sent=value is not UNCHANGED)


def _text(value: Value) -> str | None:
    return None if value is None or value is UNCHANGED else value.decode(errors="replace")
