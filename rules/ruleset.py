"""The rules of a file, and the rules of one table.

    RuleSet      made once from a file, sent to every task: pure data
    BoundRules   what it means for one version of one table: columns found, values read by their types

All entries of a file that name or match a table count for it, in file order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import assert_never

from pgsluice.rules.bounds import RuleBudget
from pgsluice.rules.rule import ALL_OPERATIONS, Filter, Rule, RuleOutcome, Transform, column_index
from pgsluice.rules.rule_run import RuleRun
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.wire.table import ReplicaIdentity, Table, TableName, TablePattern, table_names

_REMEDY = "correct the rules file and start again"


@dataclass(frozen=True, slots=True)
class TableRules:
    """One entry of the file. ``place`` is file, line and table."""

    place: str
    pattern: TablePattern
    rules: tuple[Rule, ...]


Step = Callable[[RuleRun], None]
"""Applies one rule to what the run has left."""


class BoundRules:
    """The rules of one version of a table. Keeps nothing between calls."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)

    def apply(self, changes: TableChanges, budget: RuleBudget | None = None) -> RuleOutcome:
        """``changes``, which must be of the table, are left as they are; what comes out may share lists with them. Raises
        BudgetSpentError."""
        run = RuleRun(changes, budget)
        for step in self._steps:
            if not len(run):
                break
            step(run)
        return run.finish()


@dataclass(frozen=True)
class RuleSet:
    """Picklable. ``hash`` is the hexadecimal SHA-256 of what the file says; ``remarks`` are what may surprise about the file,
    whatever the tables."""

    path: str
    hash: str
    entries: tuple[TableRules, ...] = field(compare=False)
    remarks: tuple[str, ...] = field(compare=False, default=())

    def bind(self, table: Table, also: TableName | None = None) -> BoundRules | None:
        """The rules of this version of the table, found once for each; None when none touches it. ``also`` is another name that
        the table has: rules for either name hold.

        Raises TerminalError when a rule names a column that is not there, or does not fit a column's type, or changes a key.
        """
        return _bind(self, table, also)

    def filters(self, names: Iterable[TableName]) -> bool:
        """Whether a filter touches a table of these names."""
        # one kind alone: looks for the filters, or the transforms, among the rules; the other kinds are no concern of it
        return any(
            isinstance(rule, Filter)
            for entry in self.entries
            if any(entry.pattern.matches(*name) for name in names)
            for rule in entry.rules
        )

    def unguarded(self, names: Iterable[TableName], columns: Iterable[str]) -> list[str]:
        """Those of ``columns`` that no transform touches, in a table of these names that has a transform."""
        entries = [entry for entry in self.entries if any(entry.pattern.matches(*name) for name in names)]
        transforms = [rule for entry in entries for rule in entry.rules if isinstance(rule, Transform)]
        touched = [column for column in columns if any(rule.columns.matches(column) for rule in transforms)]
        return [column for column in columns if column not in touched] if transforms else []

    def check(self, tables: Sequence[Table]) -> list[str]:
        """What is wrong with the rules, when these are all tables there are: the sentences that ``bind`` would raise, tables and
        columns that match nothing, names that are ambiguous."""
        problems: list[str] = []
        for entry in self.entries:
            matched = [table for table in tables if entry.pattern.matches(table.schema, table.name)]
            names = sorted({table.qualified_name for table in matched})
            if not names:
                problems.append(f"{entry.place}: no table is called that")
            elif entry.pattern.is_name and len(names) > 1:
                problems.append(f"{entry.place}: several tables are called that ({', '.join(names)}): write the schema too")
            for table in matched:
                problems += _misfits(entry, table)
            problems += _idle(entry, matched)
        return list(dict.fromkeys(problems))

    def warnings(self, tables: Sequence[Table]) -> list[str]:
        """What is not wrong but may surprise: the file's remarks, and what a table's replica identity keeps the rules from
        knowing."""
        unknown = dict.fromkeys(
            warning
            for entry in self.entries
            for table in tables
            if entry.pattern.matches(table.schema, table.name)
            for warning in _identity_warnings(entry, table)
        )
        return [*self.remarks, *unknown]


NO_RULES = RuleSet("", "", ())
"""Touches no table."""


@lru_cache(maxsize=16384)  # a worker may serve thousands of subscriptions with rules of their own
def _bind(rules: RuleSet, table: Table, also: TableName | None) -> BoundRules | None:
    names = table_names(table, also)
    entries = [entry for entry in rules.entries if any(entry.pattern.matches(*name) for name in names)]
    misfits = [misfit for entry in entries for misfit in _misfits(entry, table)]
    if misfits:
        raise TerminalError("; ".join(misfits), _REMEDY)
    steps = [step for entry in entries for rule in entry.rules if (step := _bound(entry, rule, table)) is not None]
    return BoundRules(steps) if steps else None


def _misfits(entry: TableRules, table: Table) -> Iterator[str]:
    """A sentence for each rule of the entry that does not fit the table."""
    for rule in entry.rules:
        try:
            _bound(entry, rule, table)
        except ValueError as error:
            yield f"{rule.place}: table '{table.qualified_name}': {error}"


def _bound(entry: TableRules, rule: Rule, table: Table) -> Step | None:
    """None for a transform that has no column in this table. Raises ValueError with a sentence."""
    match rule:
        case Filter():
            return partial(RuleRun.filter, rule=rule, test=rule.condition.bind(table))
        case Transform():
            return _bound_transform(entry, rule, table)
        case unreachable:
            assert_never(unreachable)


def _bound_transform(entry: TableRules, rule: Transform, table: Table) -> Step | None:
    if entry.pattern.is_name and rule.columns.is_name:
        column_index(table, rule.columns.name)
    indexes = [index for index, column in enumerate(table.columns) if rule.columns.matches(column.name)]
    if entry.pattern.is_name and not indexes:
        raise ValueError(f"no column matches '{rule.columns.text}'")
    _check_columns(rule, table, indexes)
    return partial(RuleRun.transform, rule=rule, columns=indexes) if indexes else None


def _check_columns(rule: Transform, table: Table, indexes: Sequence[int]) -> None:
    problems = []
    keys = {index for index, column in enumerate(table.columns) if _identifies(table, index)}
    for index in indexes:
        column = table.columns[index]
        try:
            rule.transformation.check_column(column)
        except ValueError as error:
            problems.append(f"column '{column.name}' {error}")
        if index in keys and not rule.keeps_unique:
            problems.append(
                f"column '{column.name}' is part of the key, and two rows could become one"
                " (if the rule keeps different values different, say 'keeps_unique: true')"
            )
    if problems:
        raise ValueError("; ".join(problems))


def _identifies(table: Table, index: int) -> bool:
    full = table.replica_identity is ReplicaIdentity.FULL
    return index in table.key or (table.columns[index].identity_key and not full)


def _idle(entry: TableRules, tables: Sequence[Table]) -> Iterator[str]:
    """A sentence for each transform that changes no column of any of its tables."""
    if entry.pattern.is_name or not tables:
        return
    for rule in entry.rules:
        if isinstance(rule, Transform) and not any(
            rule.columns.matches(column.name) for table in tables for column in table.columns
        ):
            yield f"{rule.place}: no table has a column '{rule.columns.text}'"


def _identity_warnings(entry: TableRules, table: Table) -> Iterator[str]:
    full = table.replica_identity is ReplicaIdentity.FULL
    sent = {column.name for column in table.columns if column.identity_key}
    for rule in entry.rules:
        identity = f"{rule.place}: table '{table.qualified_name}' has REPLICA IDENTITY {table.replica_identity.name}"
        match rule:
            case Filter():
                unknown = ", ".join(sorted(rule.condition.column_names - sent))
                if unknown and not full:
                    yield (
                        f"{identity}, so an old row's {unknown} is not known: deletes of rows that do not pass go on, and an"
                        " update of a row that does not pass is sent as a delete, whether the row passed before or not"
                    )
            case Transform():
                is_partial = full and rule.operations != ALL_OPERATIONS
                if is_partial and any(rule.columns.matches(column.name) for column in table.columns):
                    yield (
                        f"{identity}, and the rule leaves out some operations: rows of these, the old ones too, keep"
                        f" '{rule.columns.text}' as it is"
                    )
            case unreachable:
                assert_never(unreachable)
