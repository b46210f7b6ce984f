"""The rules of a file, and the rules of one table.

    RuleSet      made once from a file, sent to every task: pure data
    BoundRules   its meaning for one version of a table: columns found, values read by their types

All entries of a file that name or match a table apply to it, in file order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import assert_never

from pgsluice.rules.bounds import RuleBudget
from pgsluice.rules.rule import ALL_OPERATIONS, Filter, Rule, RuleOutcome, Transform, Unlisted, column_index
from pgsluice.rules.rule_run import RuleRun
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.wire.definition import DefinedColumn, TableDefinition
from pgsluice.shared.wire.table import NamePattern, ReplicaIdentity, Table, TableName, TablePattern, table_names

_REMEDY = (
    "correct the rules file and start again (for a column that is newer than the row, or does not exist yet, set"
    " 'optional: true')"
)


@dataclass(frozen=True, slots=True)
class TableRules:
    """One entry of the file. ``place`` is file, line and table. ``kept`` are columns that leave as they are, whatever is
    ``unlisted``. ``is_optional``: the table need not be there."""

    place: str
    pattern: TablePattern
    rules: tuple[Rule, ...]
    unlisted: Unlisted = Unlisted.KEEP
    kept: tuple[NamePattern, ...] = ()
    is_optional: bool = False

    def lists(self, column: str) -> bool:
        """Returns whether the file names the column."""
        named = (pattern for rule in self.rules for pattern in rule.named)
        return any(pattern.matches(column) for pattern in (*self.kept, *named))


Step = Callable[[RuleRun], None]
"""Applies one rule to what the run has left."""


class BoundRules:
    """The rules of one version of a table. Keeps nothing between calls. ``table`` is what rows are of that went through them."""

    def __init__(self, steps: Sequence[Step], table: Table) -> None:
        self._steps = tuple(steps)
        self.table = table

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
    """Picklable. ``hash`` is the hexadecimal SHA-256 of the file's content; ``remarks`` are what may surprise about the
    file, whatever the tables."""

    path: str
    hash: str
    entries: tuple[TableRules, ...] = field(compare=False)
    remarks: tuple[str, ...] = field(compare=False, default=())

    def bind(self, table: Table, also: TableName | None = None) -> BoundRules | None:
        """Returns the rules of this version of the table, found once for each; None when none touches it. ``also`` is
        another name that the table has: rules for either name hold.

        Raises TerminalError when a rule names a column that is not there, or does not fit a column's type, or changes a
        key.
        """
        return _bind(self, table, also)

    def filters(self, names: Iterable[TableName]) -> bool:
        """Returns whether a filter touches a table of these names."""
        # a single kind: looks for the filters, or the transforms, among the rules; the other kinds are no concern of it
        return any(
            isinstance(rule, Filter)
            for entry in self.entries
            if any(entry.pattern.matches(*name) for name in names)
            for rule in entry.rules
        )

    def unguarded(self, names: Iterable[TableName], columns: Iterable[str]) -> list[str]:
        """Returns the ``columns`` that no transform touches and no entry keeps, in a table of these names that has a
        transform and passes unlisted columns."""
        entries = self._entries_of(names)
        transforms = [rule for entry in entries for rule in entry.rules if isinstance(rule, Transform)]
        if not transforms or _unlisted(entries) is not Unlisted.KEEP:
            return []
        kept = [pattern for entry in entries for pattern in (*entry.kept, *(rule.columns for rule in transforms))]
        return [column for column in columns if not any(pattern.matches(column) for pattern in kept)]

    def defined(self, table: TableDefinition, also: TableName, *, is_new: bool) -> TableDefinition:
        """Returns ``table`` for readers of its definitions: the value that a column was added with is transformed like
        those of rows. ``is_new``: rows are like that from now on. Raises TerminalError then when an unlisted column
        must be listed."""
        entries = self._entries_of([(table.schema, table.name), also])
        if not entries:
            return table
        unlisted = [each.name for each in table.columns if each.is_published and not _lists(entries, each.name)]
        if is_new and unlisted and _unlisted(entries) is Unlisted.REFUSE:
            raise TerminalError("; ".join(_refusals(entries, f"{table.schema}.{table.name}", unlisted)), _REMEDY)
        cleared = unlisted if _unlisted(entries) is not Unlisted.KEEP else []
        return replace(table, columns=tuple(_defined(entries, each, each.name in cleared) for each in table.columns))

    def _entries_of(self, names: Iterable[TableName]) -> list[TableRules]:
        known = set(names)
        return [entry for entry in self.entries if any(entry.pattern.matches(*name) for name in known)]

    def check(self, tables: Sequence[Table]) -> list[str]:
        """Returns the errors in the rules, if these are all tables: the sentences that ``bind`` would raise, tables and
        columns that match nothing, ambiguous names."""
        problems: list[str] = []
        for entry in self.entries:
            matched = [table for table in tables if entry.pattern.matches(table.schema, table.name)]
            names = sorted({table.qualified_name for table in matched})
            if not names and not entry.is_optional:
                problems.append(f"{entry.place}: no table is called that")
            elif entry.pattern.is_name and len(names) > 1:
                problems.append(f"{entry.place}: several tables are called that ({', '.join(names)}): write the schema too")
            for table in matched:
                problems += _misfits(entry, table)
            problems += _idle(entry, matched)
        for table in tables:
            problems += _unlisted_problems(self._entries_of([(table.schema, table.name)]), table)
        return list(dict.fromkeys(problems))

    def warnings(self, tables: Sequence[Table]) -> list[str]:
        """Returns facts that are no errors but may surprise: the file's remarks, limits of the rules by a table's
        replica identity, and columns that do not exist yet."""
        unknown = dict.fromkeys(
            warning
            for entry in self.entries
            for table in tables
            if entry.pattern.matches(table.schema, table.name)
            for warning in (*_identity_warnings(entry, table), *_awaited(entry, table))
        )
        return [*self.remarks, *unknown]


NO_RULES = RuleSet("", "", ())
"""Touches no table."""


@lru_cache(maxsize=16384)  # a worker may serve thousands of subscriptions with separate rules
def _bind(rules: RuleSet, table: Table, also: TableName | None) -> BoundRules | None:
    names = table_names(table, also)
    entries = [entry for entry in rules.entries if any(entry.pattern.matches(*name) for name in names)]
    misfits = [misfit for entry in entries for misfit in _misfits(entry, table)]
    if misfits:
        raise TerminalError("; ".join(misfits), _REMEDY)
    unlisted = list(_unlisted_problems(entries, table))
    if unlisted:
        raise TerminalError("; ".join(unlisted), _REMEDY)
    steps = [step for entry in entries for rule in entry.rules if (step := _bound(entry, rule, table)) is not None]
    cleared, left = _cleared_columns(entries, table), table
    if cleared:
        left = _cleared(table, cleared)
        steps.append(partial(RuleRun.clear, columns=cleared, table=left))
    return BoundRules(steps, left) if steps else None


def _unlisted(entries: Iterable[TableRules]) -> Unlisted:
    return max((entry.unlisted for entry in entries), default=Unlisted.KEEP)


def _lists(entries: Iterable[TableRules], column: str) -> bool:
    return any(entry.lists(column) for entry in entries)


def _unlisted_problems(entries: Sequence[TableRules], table: Table) -> Iterator[str]:
    """Yields a sentence for each column that has to be listed, and is not."""
    unlisted = [index for index, column in enumerate(table.columns) if not _lists(entries, column.name)]
    match _unlisted(entries):
        case Unlisted.KEEP:
            pass
        case Unlisted.REFUSE:
            yield from _refusals(entries, table.qualified_name, [table.columns[index].name for index in unlisted])
        case Unlisted.NULL:
            place = _place_of(entries, Unlisted.NULL)
            for index in unlisted:
                if _identifies(table, index):
                    named = f"column '{table.columns[index].name}' of table '{table.qualified_name}'"
                    yield f"{place}: {named} is part of the key and cannot be NULL, and no rule names it (name it under 'keep')"
        case unreachable:
            assert_never(unreachable)


def _refusals(entries: Sequence[TableRules], table: str, columns: Iterable[str]) -> Iterator[str]:
    place = _place_of(entries, Unlisted.REFUSE)
    for column in columns:
        fact = f"no rule names column '{column}' of table '{table}', and 'unlisted' is refuse"
        yield f"{place}: {fact} (name it in one, or under 'keep')"


def _place_of(entries: Iterable[TableRules], unlisted: Unlisted) -> str:
    return next(entry.place for entry in entries if entry.unlisted is unlisted)


def _cleared_columns(entries: Sequence[TableRules], table: Table) -> list[int]:
    if _unlisted(entries) is not Unlisted.NULL:
        return []
    return [index for index, column in enumerate(table.columns) if not _lists(entries, column.name)]


def _cleared(table: Table, indexes: Sequence[int]) -> Table:
    """Returns ``table`` as a target has to have it: what is cleared is NULL, of a column that is no identity."""
    columns = list(table.columns)
    for index in indexes:
        columns[index] = replace(columns[index], not_null=False, identity="", generated="")
    return replace(table, columns=tuple(columns))


def _defined(entries: Sequence[TableRules], column: DefinedColumn, is_cleared: bool) -> DefinedColumn:
    if is_cleared:
        return replace(column, not_null=False, identity="", generated="", missing=None, missing_differs=False)
    missing = column.missing
    for rule in (rule for entry in entries for rule in entry.rules):
        # a single kind: a filter leaves values as they are
        if missing is not None and isinstance(rule, Transform) and rule.columns.matches(column.name):
            try:
                done = rule.transformation.apply([missing.encode()])
            except ValueError:
                return replace(column, missing=None)
            missing = None if done.failures else done.values[0].decode()
    return replace(column, missing=missing)


def _misfits(entry: TableRules, table: Table) -> Iterator[str]:
    """Yields a sentence for each rule of the entry that does not fit the table."""
    for rule in entry.rules:
        try:
            _bound(entry, rule, table)
        except ValueError as error:
            yield f"{rule.place}: table '{table.qualified_name}': {error}"


def _bound(entry: TableRules, rule: Rule, table: Table) -> Step | None:
    """Returns None for a transform that has no column in this table. Raises ValueError with a sentence."""
    match rule:
        case Filter():
            if rule.is_optional and not rule.condition.column_names <= {column.name for column in table.columns}:
                return None
            return partial(RuleRun.filter, rule=rule, test=rule.condition.bind(table))
        case Transform():
            return _bound_transform(entry, rule, table)
        case unreachable:
            assert_never(unreachable)


def _bound_transform(entry: TableRules, rule: Transform, table: Table) -> Step | None:
    if entry.pattern.is_name and rule.columns.is_name and not rule.is_optional:
        column_index(table, rule.columns.name)
    indexes = [index for index, column in enumerate(table.columns) if rule.columns.matches(column.name)]
    if entry.pattern.is_name and not indexes and not rule.is_optional:
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
                " (if the rule keeps different values different, set 'keeps_unique: true')"
            )
    if problems:
        raise ValueError("; ".join(problems))


def _identifies(table: Table, index: int) -> bool:
    full = table.replica_identity is ReplicaIdentity.FULL
    return index in table.key or (table.columns[index].identity_key and not full)


def _idle(entry: TableRules, tables: Sequence[Table]) -> Iterator[str]:
    """Yields a sentence for each transform that changes no column of any of its tables."""
    if entry.pattern.is_name or not tables:
        return
    for rule in entry.rules:
        if (
            isinstance(rule, Transform)
            and not rule.is_optional
            and not any(rule.columns.matches(column.name) for table in tables for column in table.columns)
        ):
            yield f"{rule.place}: no table has a column '{rule.columns.text}'"


def _awaited(entry: TableRules, table: Table) -> Iterator[str]:
    """Yields a sentence for each rule that has no column in this table yet."""
    names = {column.name for column in table.columns}
    for rule in entry.rules if entry.pattern.is_name else ():
        for pattern in rule.named if rule.is_optional else ():
            if not any(map(pattern.matches, names)):
                yield f"{rule.place}: table '{table.qualified_name}' has no column '{pattern}' yet; the rule counts when it comes"


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
                        f"{identity}, so an old row's {unknown} is not known: deletes of rows that do not pass are sent, and an"
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
