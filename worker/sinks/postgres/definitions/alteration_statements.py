"""The statements that bring a target's table from one definition of the source to the next. Pure.

Columns go by the source's numbers: what the target calls a column is the target's business, unless it has the source's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from psycopg import sql

from pgsluice.shared.definitions.difference import (
    ColumnAdded,
    ColumnDropped,
    ColumnPublished,
    ColumnRenamed,
    Difference,
    KeyAltered,
    NotNullAltered,
    PartitionAttached,
    PartitionDetached,
    TableRenamed,
    TypeAltered,
)
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.definition import DefinedColumn, DefinedPartition
from pgsluice.worker.definitions.partition_condition import (
    ColumnComparison,
    Combination,
    Condition,
    Constant,
    Negation,
    NullTest,
    parse_condition,
)
from pgsluice.worker.definitions.policy import DefinitionAction
from pgsluice.worker.sinks.postgres.definitions.type_statements import Statement, moving
from pgsluice.worker.sinks.postgres.target.type_names import TEXT

_MODIFIERS = re.compile(r"\([^)]*\)")
_NARROWER = {
    "integer": ("smallint",),
    "bigint": ("smallint", "integer"),
    "numeric": ("smallint", "integer", "bigint"),
    "json": ("jsonb",),
}


@dataclass(frozen=True, slots=True)
class ColumnHere:
    """A column of the target."""

    name: str
    not_null: bool
    is_generated: bool


@dataclass(frozen=True, slots=True)
class TableHere:
    """A table of the target with rows of one of the source. ``columns`` are its columns for the source's, by the
    source's numbers, and ``current`` their types. ``types`` are the target's names of the types of the source's columns
    that a difference gives one, by number; None where it has none of that name. ``key_constraint`` is the constraint of
    its primary key of ``key_columns``; "" and () without one. ``source_columns`` are the previous columns of the
    source's table, by name."""

    place: tuple[str, str]
    columns: Mapping[int, ColumnHere]
    current: Mapping[int, str]
    types: Mapping[int, str | None]
    is_partitioned: bool
    is_empty: bool
    key_constraint: str
    key_columns: tuple[str, ...]
    unique_keys: Sequence[set[str]]
    source_columns: Mapping[str, DefinedColumn]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*self.place)

    @property
    def rows(self) -> sql.Composed:
        """The table for statements that find rows, as ``TargetTable.rows``."""
        return sql.SQL("" if self.is_partitioned else "ONLY ") + self.identifier

    @property
    def names(self) -> dict[int, str]:
        return {number: column.name for number, column in self.columns.items()}


def statements(difference: Difference, here: TableHere, action: DefinitionAction = DefinitionAction.APPLY) -> list[Statement]:
    """Returns the statements in order; empty if there is nothing to do. ``action`` is one that
    ``worker.definitions.policy`` allows for it."""
    match difference:
        case TableRenamed(was, now):
            return list(_renaming(here, was, now))
        case ColumnAdded(column):
            return list(_adding(here, column))
        case ColumnDropped(column):
            how = "ALTER COLUMN {} DROP NOT NULL" if action is DefinitionAction.KEEP else "DROP COLUMN {}"
            return [_alter(here, how, here.names[column.number])] if column.number in here.names else []
        case ColumnRenamed(was, now):
            return list(_renaming_column(here, was, now))
        case TypeAltered():
            return list(_altering_type(here, difference))
        case NotNullAltered(now):
            is_relaxed = not now.not_null and now.number in here.names
            return [_alter(here, "ALTER COLUMN {} DROP NOT NULL", here.names[now.number])] if is_relaxed else []
        case KeyAltered():
            return list(_altering_key(here, difference))
        case PartitionDetached(partition):
            return list(_deleting(here, partition)) if action is DefinitionAction.DELETE else []
        case ColumnPublished() | PartitionAttached():
            return []
        case unreachable:
            assert_never(unreachable)


def _alter(here: TableHere, action: str, *names: str) -> Statement:
    return sql.SQL("ALTER TABLE {} ").format(here.identifier) + sql.SQL(action).format(*map(sql.Identifier, names))


def _renaming(here: TableHere, was: tuple[str, str], now: tuple[str, str]) -> Iterator[Statement]:
    """Yields the renaming, only where the target has the source's name: a route sends the rows of any other elsewhere."""
    if here.place == was:
        yield from moving(sql.SQL("TABLE"), was, now)


def _adding(here: TableHere, column: DefinedColumn) -> Iterator[Statement]:
    """Yields statements that add a column. A default gives existing rows the source's values; the target needs none
    afterwards."""
    if column.number in here.columns:
        yield from _taking(here, column, here.columns[column.number])
        return
    filled = column.missing is not None
    kind = sql.SQL(here.types[column.number] or TEXT)
    default = sql.SQL(" DEFAULT {}::{}").format(sql.Literal(column.missing), kind) if filled else sql.SQL("")
    not_null = sql.SQL(" NOT NULL" if column.not_null and (filled or here.is_empty) else "")
    yield _alter(here, "ADD COLUMN {} ", column.name) + kind + default + not_null
    if filled:
        yield _alter(here, "ALTER COLUMN {} DROP DEFAULT", column.name)


def _taking(here: TableHere, column: DefinedColumn, found: ColumnHere) -> Iterator[Statement]:
    """Yields statements for a column that was added in advance: from now on it is the source's, and rows get the
    source's values."""
    wanted, current = here.types[column.number] or column.type_name, here.current[column.number]
    if not _takes(current, wanted):
        alter = _alter(here, "ALTER COLUMN {} TYPE ", found.name) + sql.SQL(here.types[column.number] or TEXT)
        raise TerminalError(
            f"the source added column '{column.name}' of type {wanted} to '{'.'.join(here.place)}', and the target has one of"
            f" that name whose type is {current}",
            f"give it the source's type there ({alter.as_string()}), or another name",
        )
    if found.is_generated:
        return
    if found.not_null and not column.not_null and found.name not in here.key_columns:
        yield _alter(here, "ALTER COLUMN {} DROP NOT NULL", found.name)
    if here.is_empty:
        return
    name = sql.Identifier(found.name)
    update = sql.SQL("UPDATE {} SET {} = ").format(here.rows, name)
    if column.missing is None:
        yield update + sql.SQL("NULL WHERE {} IS NOT NULL").format(name)
    else:  # by their texts: not every type has an equality
        value = sql.SQL("{}::{}").format(sql.Literal(column.missing), sql.SQL(current))
        yield update + sql.SQL("{value} WHERE {name}::text IS DISTINCT FROM ({value})::text").format(value=value, name=name)


def _takes(current: str, wanted: str) -> bool:
    """Returns whether a column of the type ``current`` takes every value of the type ``wanted`` as it is."""
    return current in (wanted, _MODIFIERS.sub("", wanted), TEXT, "character varying") or wanted in _NARROWER.get(current, ())


def _renaming_column(here: TableHere, was: DefinedColumn, now: DefinedColumn) -> Iterator[Statement]:
    if here.names.get(now.number) == was.name:
        yield _alter(here, "RENAME COLUMN {} TO {}", was.name, now.name)


def _altering_type(here: TableHere, altered: TypeAltered) -> Iterator[Statement]:
    """Yields statements for a type. A column keeps a type that was only renamed, and no column becomes text because its
    type is missing."""
    number = altered.now.number
    if altered.is_same or number not in here.columns:
        return
    name, kind = here.columns[number].name, here.types[number]
    if kind is None and here.current[number] != TEXT:
        raise TerminalError(
            f"the source altered column '{altered.now.name}' of '{'.'.join(here.place)}' from type {altered.was.type_name} to"
            f" {altered.now.type_name}, which the target does not have",
            f"create the type at the target, in the same schema; or give column '{name}' there a type that takes the values",
        )
    if kind is not None and here.current[number] != kind:
        yield _alter(here, "ALTER COLUMN {} TYPE ", name) + sql.SQL(kind)


def _altering_key(here: TableHere, keys: KeyAltered) -> Iterator[Statement]:
    """The target's primary key follows the source's where it was the same: rows that have another key may be alike in this one.
    What identifies a row must be unique at the target, whatever else is."""
    unique = [*here.unique_keys]
    if keys.primary_was != keys.primary_now and here.key_columns == _names(here, keys.primary_was):
        if here.key_constraint:
            yield _alter(here, "DROP CONSTRAINT {}", here.key_constraint)
            unique.remove(set(here.key_columns))
        if keys.primary_now:
            yield _key(here, "ADD PRIMARY KEY", keys.primary_now)
            unique.append(set(_names(here, keys.primary_now)))
    if keys.identity_now and set(_names(here, keys.identity_now)) not in unique:
        columns = sql.SQL(", ").join(map(sql.Identifier, _names(here, keys.identity_now)))
        yield sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(here.identifier, columns)


def _deleting(here: TableHere, partition: DefinedPartition) -> Iterator[Statement]:
    """Yields the deletion of the partition's rows. Conditions beyond plain columns were judged as not applicable here."""
    condition = parse_condition(partition.constraint, here.source_columns)
    if condition is None:
        raise TerminalError(
            f"the rows of partition {partition.schema}.{partition.name} cannot be identified at '{'.'.join(here.place)}'",
            "delete them there yourself, and accept the definition ('pgsluice ddl accept')",
        )
    yield sql.SQL("DELETE FROM {} WHERE ").format(here.rows) + _written(here, condition)


def _written(here: TableHere, condition: Condition) -> Statement:
    match condition:
        case NullTest(column, is_null):
            return sql.SQL("{} IS NULL" if is_null else "{} IS NOT NULL").format(_column(here, column))
        case ColumnComparison(column, operator, [constant]):
            return sql.SQL("{} {} {}").format(_column(here, column), sql.SQL(operator), _constant(constant))
        case ColumnComparison(column, _, constants):
            return sql.SQL("{} IN ({})").format(_column(here, column), sql.SQL(", ").join(map(_constant, constants)))
        case Negation(negated):
            return sql.SQL("NOT ({})").format(_written(here, negated))
        case Combination(word, conditions):
            parts = [sql.SQL("({})").format(_written(here, each)) for each in conditions]
            return sql.SQL(f" {word} ").join(parts)
        case unreachable:
            assert_never(unreachable)


def _column(here: TableHere, number: int) -> sql.Identifier:
    if number not in here.names:
        raise TerminalError(
            f"'{'.'.join(here.place)}' at the target lacks a column by which a detached partition's rows are found",
            "delete them there yourself, and accept the definition ('pgsluice ddl accept')",
        )
    return sql.Identifier(here.names[number])


def _constant(constant: Constant) -> Statement:
    value = sql.Literal(constant.text) if constant.is_text else sql.SQL(constant.text)
    return sql.SQL("{}{}").format(value, sql.SQL(f"::{constant.type_name}" if constant.type_name else ""))


def _key(here: TableHere, action: str, numbers: Sequence[int]) -> Statement:
    columns = sql.SQL(", ").join(map(sql.Identifier, _names(here, numbers)))
    return sql.SQL("ALTER TABLE {} {} ({})").format(here.identifier, sql.SQL(action), columns)


def _names(here: TableHere, numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(here.names[number] for number in numbers if number in here.names)
