"""Trials of rules and routes, on changes that a user sends or that a stream holds. The server does not trust that user.

``trial_process`` reads and applies them, and may die while it does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from pgsluice.console.change_lines import guess_tables, known_tables, read_lines
from pgsluice.console.inspect.trial_steps import ChangeOutcome, StepOutcome, Trial, TrialStep
from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import read_transformation
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.table import Table

TRYING_S = 10.0
"""Seconds after which rules are tried on no more changes of a request."""


@dataclass(frozen=True, slots=True)
class BenchedChange:
    """``before`` is the JSON line of the change, ``after`` are the lines that a worker would hand to its sink."""

    before: object
    steps: tuple[TrialStep, ...]
    outcome: ChangeOutcome
    after: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class BenchResult:
    """``hash`` is the hash of rules and routes together, as workers report it. ``warnings`` are what may surprise about
    them."""

    hash: str
    warnings: tuple[str, ...]
    changes: tuple[BenchedChange, ...]


@dataclass(frozen=True, slots=True)
class RuledChange:
    """``outcome`` is None if rules or routes do not fit the table. ``detail`` is the reason, or what dropped the
    change."""

    outcome: ChangeOutcome | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RuledChanges:
    """``hash`` is as in BenchResult. ``changes`` are the first ones, as far as there was time."""

    hash: str
    changes: tuple[RuledChange, ...]


@dataclass(frozen=True, slots=True)
class BenchTrial:
    """``rules`` and ``routing`` are texts, "" for none; ``lines`` are JSON lines. ``tables`` are the known ones."""

    rules: str
    routing: str
    tables: tuple[Table, ...]
    lines: tuple[bytes, ...]

    def result(self) -> BenchResult:
        """Raises UsageError, TerminalError."""
        transformation = read_transformation(self.rules, self.routing)
        lines = read_lines(self.lines, "lines")
        by_name = guess_tables(lines) | known_tables(self.tables)
        messages = [line.message(by_name[line.name]) for line in lines]
        tried = Trial(transformation.knowing(self.tables)).of_all(messages, TRYING_S)
        changes = [
            BenchedChange(
                orjson.Fragment(self.lines[line.number - 1]), each.steps, each.outcome, tuple(map(orjson.Fragment, each.lines))
            )
            for line, each in zip(lines, tried, strict=True)
        ]
        return BenchResult(transformation.hash, tuple(transformation.warnings(self.tables)), tuple(changes))


@dataclass(frozen=True, slots=True)
class ChangesTrial:
    """Like BenchTrial, but on ``messages`` of one change each."""

    rules: str
    routing: str
    tables: tuple[Table, ...]
    messages: tuple[MessageChanges, ...]

    def result(self) -> RuledChanges:
        """Raises UsageError."""
        return try_changes(read_transformation(self.rules, self.routing).knowing(self.tables), self.messages)


def try_changes(transformation: Transformation, messages: Sequence[MessageChanges]) -> RuledChanges:
    trial, ends_at, tried = Trial(transformation), time.monotonic() + TRYING_S, list[RuledChange]()
    for message in messages:
        if time.monotonic() > ends_at:
            break
        tried.append(_tried(trial, message))
    return RuledChanges(transformation.hash, tuple(tried))


def _tried(trial: Trial, message: MessageChanges) -> RuledChange:
    try:
        tried = trial.of(message)
    except TerminalError as error:
        return RuledChange(None, error.fact)
    if tried.outcome is not ChangeOutcome.DROPPED:
        return RuledChange(tried.outcome)
    dropping = [step.place for step in tried.steps if step.outcome is StepOutcome.DROPPED]
    return RuledChange(tried.outcome, f"by {dropping[0]}" if dropping else "by a route")
