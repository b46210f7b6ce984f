"""``pgsluice rules``: errors in rules and routes, and the effect of each rule on each change, for users and a team's CI.

``rules test`` tries the rules in file order, each on the result of the one before; at the end comes the change that a
worker would hand to its sink.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import assert_never

from pgsluice.console.change_lines import ChangeLine, Name, format_json, guess_tables, known_tables, parse_json, read_lines
from pgsluice.console.inspect.trial_steps import ChangeOutcome, StepOutcome, Trial, TrialStep, ValueChange
from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import check_tables, load_transformation
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.search.mapping_file import load_mapping

STANDARD_INPUT = "standard input"


def check(rules_file: str, routing_file: str, tables: Sequence[Table] | None, search_mapping: str = "") -> None:
    """Prints the content of the files on standard output. ``tables`` are all that the source has, None to skip their
    check. Raises UsageError that names every error."""
    transformation = load_transformation(rules_file, routing_file)
    mapping = load_mapping(search_mapping)
    if tables is not None:
        check_tables(transformation, tables)
        mapping.check_tables([routed for table in tables for routed in transformation.destinations(table)])
    for warning in transformation.warnings(tables or ()):
        sys.stdout.write(f"warning: {warning}\n")
    rules = sum(len(entry.rules) for entry in transformation.rules.entries)
    compared = f", and they fit the source's {len(tables)} tables" if tables is not None else ""
    sys.stdout.write(
        f"{rules} rules and {len(transformation.routing.routes)} routes are well formed{compared}; hash {transformation.hash}\n"
    )


def try_out(rules_file: str, routing_file: str, input_file: str | None, tables: Sequence[Table]) -> None:
    """Writes to standard output. ``tables`` are those of the source, where their types are wanted; the others are guessed. Raises
    UsageError for files or lines that cannot be used, TerminalError for rules that do not fit a table, and UsageError at the end
    when a rule could not process a change."""
    transformation = load_transformation(rules_file, routing_file)
    lines = _read(input_file)
    by_name = guess_tables(lines) | known_tables(tables)
    report = Report(transformation)
    for line in lines:
        for text in report.of(line, _table(line, by_name, input_file)):
            sys.stdout.write(f"{text}\n")
    sys.stdout.write(f"{len(lines)} changes: {report.summary}\n")
    if report.failures:
        raise UsageError(f"rules could not process {report.failures} changes", "see the lines above")


def _read(input_file: str | None) -> list[ChangeLine]:
    if input_file is None:
        return read_lines(sys.stdin.buffer, STANDARD_INPUT)
    try:
        with open(input_file, "rb") as file:
            return read_lines(file, input_file)
    except OSError as error:
        raise UsageError(f"{input_file} cannot be read ({error.strerror})", "name a file of JSON lines") from None


def _table(line: ChangeLine, by_name: dict[Name, Table], input_file: str | None) -> Table:
    """Raises UsageError when the line speaks of a column that the table does not have."""
    table = by_name[line.name]
    unknown = line.columns - {column.name for column in table.columns}
    if unknown:
        raise UsageError(
            f"{input_file or STANDARD_INPUT}:{line.number}: table '{table.qualified_name}' of the source has no column"
            f" '{min(unknown)}'",
            "leave --against-source out, or bring the lines up to date",
        )
    return table


class Report:
    """The lines about the outcome of changes. ``failures`` counts changes that a rule could not process."""

    def __init__(self, transformation: Transformation) -> None:
        self.failures = 0
        self._trial = Trial(transformation)
        self._outcomes: Counter[ChangeOutcome] = Counter()

    @property
    def summary(self) -> str:
        counts = (f"{count} {outcome.value}" for outcome, count in sorted(self._outcomes.items()))
        return ", ".join(counts) or "nothing to try"

    def of(self, line: ChangeLine, table: Table) -> Iterator[str]:
        """Yields the lines about the outcome of one change."""
        yield f"line {line.number}: {line.operation} {table.qualified_name}"
        tried = self._trial.of(line.message(table))
        for step in tried.steps:
            yield from (f"  {step.place}: {said}" for said in _said(step))
        self._outcomes[tried.outcome] += 1
        match tried.outcome:
            case ChangeOutcome.REJECTED:
                self.failures += 1
                yield "  => a dead letter"
            case ChangeOutcome.DROPPED:
                yield "  => nothing"
            case ChangeOutcome.PASSED:
                yield from map(_passed_on, tried.lines)
            case unreachable:
                assert_never(unreachable)


def _passed_on(line: bytes) -> str:
    content = parse_json(line.decode())
    shown = {name: content[name] for name in ("before", "after", "unchanged") if content.get(name)}
    return f"  => {content['operation']} {content['schema']}.{content['table']} {format_json(shown)}"


def _said(step: TrialStep) -> Iterator[str]:
    """Yields the effect of one rule on one change."""
    match step.outcome:
        case StepOutcome.REJECTED:
            yield f"cannot process it ({step.detail})"
        case StepOutcome.DROPPED:
            yield "dropped"
        case StepOutcome.KEPT:
            yield "kept"
        case StepOutcome.UNTOUCHED:
            yield "nothing to change"
        case StepOutcome.TURNED:
            was, is_now = step.detail.split()
            yield f"the {was} becomes {is_now}"
        case StepOutcome.CHANGED:
            yield from map(_value_change, step.values)
        case unreachable:
            assert_never(unreachable)


def _value_change(value: ValueChange) -> str:
    before = _shown(value.before) if value.was_sent else "(not sent)"
    return f"{'old ' if value.old_row else ''}{value.column} {before} -> {_shown(value.after)}"


def _shown(value: str | None) -> str:
    return "NULL" if value is None else format_json(value)
