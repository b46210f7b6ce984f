"""``pgsluice rules``: what is wrong with rules and routes, and what each rule does to each change, for people and a team's CI.

``rules test`` tries the rules one after the other as they stand in the file, each on what the one before made of the change; at
the end stands what a worker would hand to its sink.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgsluice.console.change_lines import ChangeLine, Name, format_json, guess_tables, known_tables, parse_json, read_lines
from pgsluice.rules.rule import Filter, Rule
from pgsluice.rules.ruleset import RuleSet, TableRules
from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import check_tables, load_transformation
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, MessageChanges, TableChanges
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.sinks.lines.json_lines import encode_lines

STANDARD_INPUT = "standard input"

_OPERATIONS = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}


def check(rules_file: str, routing_file: str, tables: Sequence[Table] | None) -> None:
    """Says on standard output what the files hold. ``tables`` are all that the source has, None when they are not to be looked
    at. Raises UsageError that names everything that is wrong."""
    transformation = load_transformation(rules_file, routing_file)
    if tables is not None:
        check_tables(transformation, tables)
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
    trial = Trial(transformation)
    for line in lines:
        for text in trial.of(line, _table(line, by_name, input_file)):
            sys.stdout.write(f"{text}\n")
    sys.stdout.write(f"{len(lines)} changes: {trial.summary}\n")
    if trial.failures:
        raise UsageError(f"rules could not process {trial.failures} changes", "see the lines above")


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


@dataclass(frozen=True, slots=True)
class _Step:
    """One rule by itself."""

    rule: Rule
    alone: RuleSet


class Trial:
    """``failures`` counts changes that a rule could not process."""

    def __init__(self, transformation: Transformation) -> None:
        self.failures = 0
        self._transformation = transformation
        self._outcomes: Counter[str] = Counter()
        self._entries = [
            (entry.pattern, [_Step(rule, _alone(transformation.rules, entry, rule)) for rule in entry.rules])
            for entry in transformation.rules.entries
        ]

    @property
    def summary(self) -> str:
        return ", ".join(f"{count} {outcome}" for outcome, count in sorted(self._outcomes.items())) or "nothing to try"

    def of(self, line: ChangeLine, table: Table) -> Iterator[str]:
        """The lines that tell what becomes of one change."""
        message = line.message(table)
        yield f"line {line.number}: {line.operation} {table.qualified_name}"
        (changes,) = message.parts
        assert isinstance(changes, TableChanges)
        yield from self._steps(changes)
        yield from self._outcome(message)

    def _steps(self, changes: TableChanges) -> Iterator[str]:
        table = changes.table
        for pattern, steps in self._entries:
            if not pattern.matches(table.schema, table.name):
                continue
            for step in steps:
                bound = step.alone.bind(table)
                if bound is None:
                    continue
                outcome = bound.apply(changes)
                if outcome.rejected:
                    yield f"  {step.rule.place}: cannot process it ({outcome.rejected[0].reason})"
                    return
                if outcome.changes is None:
                    yield f"  {step.rule.place}: dropped"
                    return
                yield from _told(step.rule, changes, outcome.changes)
                changes = outcome.changes

    def _outcome(self, message: MessageChanges) -> Iterator[str]:
        transformed, rejected = self._transformation.apply(message)
        lines = [text.decode().rstrip("\n") for text in encode_lines(transformed)]
        if rejected:
            self.failures += 1
            self._outcomes["not processed"] += 1
            yield "  => a dead letter"
        elif not lines:
            self._outcomes["dropped"] += 1
            yield "  => nothing"
        else:
            self._outcomes["passed"] += 1
            for text in "\n".join(lines).split("\n"):
                content = parse_json(text)
                shown = {name: content[name] for name in ("before", "after", "unchanged") if content.get(name)}
                yield f"  => {content['operation']} {content['schema']}.{content['table']} {format_json(shown)}"


def _alone(rules: RuleSet, entry: TableRules, rule: Rule) -> RuleSet:
    return RuleSet(rules.path, f"{rules.hash} {rule.place}", (TableRules(entry.place, entry.pattern, (rule,)),))


def _told(rule: Rule, before: TableChanges, after: TableChanges) -> Iterator[str]:
    """What ``rule`` made of one change that goes on."""
    differences = [*_differences(before, after)]
    if before.operations != after.operations:
        yield f"  {rule.place}: the {_OPERATIONS[before.operations[0]]} becomes {_OPERATIONS[after.operations[0]]}"
    elif isinstance(rule, Filter):
        yield f"  {rule.place}: kept"
    elif not differences:
        yield f"  {rule.place}: nothing to change"
    else:
        for difference in differences:
            yield f"  {rule.place}: {difference}"


def _differences(before: TableChanges, after: TableChanges) -> Iterator[str]:
    images = [("", before.new, after.new)] if after.operations[0] != DELETE else []
    if before.old is not None and after.old is not None and after.old_kinds is not None and after.old_kinds[0] != NO_OLD_ROW:
        images.append(("old ", before.old, after.old))
    for whose, was, becomes in images:
        for column, (value,), (new_value,) in zip(before.table.columns, was, becomes, strict=True):
            if value != new_value:
                yield f"{whose}{column.name} {_shown(value)} -> {_shown(new_value)}"


def _shown(value: Value) -> str:
    if value is UNCHANGED:
        return "(not sent)"
    return "NULL" if value is None else format_json(value.decode(errors="replace"))
