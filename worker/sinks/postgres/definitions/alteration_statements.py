"""The statements that bring a target's table from one definition of the source to the next. Pure.

Columns go by the source's numbers: what the target calls a column is the target's business, unless it has the source's name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from pgsluice.shared.wire.definition import DefinedColumn, DefinedPartition, EnumLabel
from pgsluice.worker.definitions.partition_condition import (
    Combination,
    Comparison,
    Condition,
    Constant,
    Negation,
    NullTest,
    parse_condition,
)
from pgsluice.worker.definitions.policy import Action

Statement = sql.Composed


@dataclass(frozen=True, slots=True)
class TableHere:
    """A table of the target that takes rows of one of the source. ``names`` are those of its columns by the numbers of the
    source's; ``others`` are its columns that none of the source's goes to. ``types`` are what the target calls the types of the
    source's columns, by number. ``key_constraint`` is that of its primary key of ``key_columns``; "" and () without one.
    ``source_columns`` are those that the source's table had before, by their names."""

    place: tuple[str, str]
    names: Mapping[int, str]
    others: Collection[str]
    types: Mapping[int, str]
    is_empty: bool
    key_constraint: str
    key_columns: tuple[str, ...]
    unique_keys: Sequence[set[str]]
    source_columns: Mapping[str, DefinedColumn]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*self.place)


def statements(difference: Difference, here: TableHere, action: Action = Action.APPLY) -> list[Statement]:
    """In order; none where nothing is to be done. ``action`` is one that ``worker.definitions.policy`` allows for it."""
    match difference:
        case TableRenamed(was, now):
            return list(_renaming(here, was, now))
        case ColumnAdded(column):
            return list(_adding(here, column))
        case ColumnDropped(column):
            how = "ALTER COLUMN {} DROP NOT NULL" if action is Action.KEEP else "DROP COLUMN {}"
            return [_alter(here, how, here.names[column.number])] if column.number in here.names else []
        case ColumnRenamed(was, now):
            return list(_renaming_column(here, was, now))
        case TypeAltered(_, now):
            return list(_altering_type(here, now))
        case NotNullAltered(now):
            is_relaxed = not now.not_null and now.number in here.names
            return [_alter(here, "ALTER COLUMN {} DROP NOT NULL", here.names[now.number])] if is_relaxed else []
        case KeyAltered():
            return list(_altering_key(here, difference))
        case PartitionDetached(partition):
            return list(_deleting(here, partition)) if action is Action.DELETE else []
        case ColumnPublished() | PartitionAttached():
            return []
        case unreachable:
            assert_never(unreachable)


def enum_statements(schema: str, name: str, was: Sequence[EnumLabel], now: Sequence[EnumLabel]) -> list[Statement]:
    """Labels that were renamed, then those that were added, in their places."""
    identifier = sql.Identifier(schema, name)
    before = {label.oid: label.label for label in was}
    found = [
        sql.SQL("ALTER TYPE {} RENAME VALUE {} TO {}").format(identifier, sql.Literal(before[oid]), sql.Literal(label))
        for oid, label in ((each.oid, each.label) for each in now)
        if before.get(oid, label) != label
    ]
    for index, label in enumerate(now):
        if label.oid not in before:
            found.append(_adding_label(identifier, now, index))
    return found


def renaming_type(was: tuple[str, str], now: tuple[str, str]) -> list[Statement]:
    return list(_moving(sql.SQL("TYPE"), was, now))


def _adding_label(identifier: sql.Identifier, labels: Sequence[EnumLabel], index: int) -> Statement:
    statement = sql.SQL("ALTER TYPE {} ADD VALUE IF NOT EXISTS {}").format(identifier, sql.Literal(labels[index].label))
    if index == 0:
        return statement + (sql.SQL(" BEFORE {}").format(sql.Literal(labels[1].label)) if len(labels) > 1 else sql.SQL(""))
    return statement + sql.SQL(" AFTER {}").format(sql.Literal(labels[index - 1].label))


def _alter(here: TableHere, action: str, *names: str) -> Statement:
    return sql.SQL("ALTER TABLE {} ").format(here.identifier) + sql.SQL(action).format(*map(sql.Identifier, names))


def _renaming(here: TableHere, was: tuple[str, str], now: tuple[str, str]) -> Iterator[Statement]:
    """Only where the target has the source's name: a route sends the rows of any other elsewhere."""
    if here.place == was:
        yield from _moving(sql.SQL("TABLE"), was, now)


def _moving(what: sql.SQL, was: tuple[str, str], now: tuple[str, str]) -> Iterator[Statement]:
    if now[0] != was[0]:
        yield sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(now[0]))
        yield sql.SQL("ALTER {} {} SET SCHEMA {}").format(what, sql.Identifier(*was), sql.Identifier(now[0]))
    if now[1] != was[1]:
        yield sql.SQL("ALTER {} {} RENAME TO {}").format(what, sql.Identifier(now[0], was[1]), sql.Identifier(now[1]))


def _adding(here: TableHere, column: DefinedColumn) -> Iterator[Statement]:
    """A default gives the rows that are there what the source's have; the target needs none afterwards."""
    if column.name in here.others:
        return  # somebody added it in advance
    filled = column.missing is not None
    kind = sql.SQL(here.types[column.number])
    default = sql.SQL(" DEFAULT {}::{}").format(sql.Literal(column.missing), kind) if filled else sql.SQL("")
    not_null = sql.SQL(" NOT NULL" if column.not_null and (filled or here.is_empty) else "")
    yield _alter(here, "ADD COLUMN {} ", column.name) + kind + default + not_null
    if filled:
        yield _alter(here, "ALTER COLUMN {} DROP DEFAULT", column.name)


def _renaming_column(here: TableHere, was: DefinedColumn, now: DefinedColumn) -> Iterator[Statement]:
    if here.names.get(now.number) == was.name:
        yield _alter(here, "RENAME COLUMN {} TO {}", was.name, now.name)


def _altering_type(here: TableHere, now: DefinedColumn) -> Iterator[Statement]:
    name = here.names.get(now.number)
    if name is not None:
        yield _alter(here, "ALTER COLUMN {} TYPE ", name) + sql.SQL(here.types[now.number])


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
    """The rows that the partition held. What cannot be told by plain columns was not judged to be done here."""
    condition = parse_condition(partition.constraint, here.source_columns)
    if condition is None:
        raise TerminalError(
            f"which rows partition {partition.schema}.{partition.name} held cannot be told at '{'.'.join(here.place)}'",
            "delete them there yourself, and accept the definition ('pgsluice ddl accept')",
        )
    yield sql.SQL("DELETE FROM {} WHERE ").format(here.identifier) + _written(here, condition)


def _written(here: TableHere, condition: Condition) -> Statement:
    match condition:
        case NullTest(column, is_null):
            return sql.SQL("{} IS NULL" if is_null else "{} IS NOT NULL").format(_column(here, column))
        case Comparison(column, operator, [constant]):
            return sql.SQL("{} {} {}").format(_column(here, column), sql.SQL(operator), _constant(constant))
        case Comparison(column, _, constants):
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
