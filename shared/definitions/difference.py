"""The differences between two definitions of one table, column by column and by column number.

A column keeps its number through renames, and a number is never reused: so a renamed column is the same, and one that
was dropped and created again is another. Only columns in rows are compared: columns that are not published, and columns
that the source generates where those are not, are no part of a table here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgsluice.shared.wire.definition import (
    DefinedColumn,
    DefinedPartition,
    TableDefined,
    TableDefinition,
    TablePublished,
    TypeDefined,
)
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import ReplicaIdentity


@dataclass(frozen=True, slots=True)
class TableRenamed:
    """Another name, another schema, or both."""

    was: tuple[str, str]
    now: tuple[str, str]


@dataclass(frozen=True, slots=True)
class ColumnAdded:
    """``column.missing`` is the value in rows that existed before."""

    column: DefinedColumn


@dataclass(frozen=True, slots=True)
class ColumnPublished:
    """Rows carry it from here on; its value in rows that existed before is unknown here."""

    column: DefinedColumn


@dataclass(frozen=True, slots=True)
class ColumnDropped:
    """A column was dropped, or rows no longer carry it."""

    column: DefinedColumn


@dataclass(frozen=True, slots=True)
class ColumnRenamed:
    was: DefinedColumn
    now: DefinedColumn


@dataclass(frozen=True, slots=True)
class TypeAltered:
    """The type, its modifiers, like the length of a varchar, or the type's name."""

    was: DefinedColumn
    now: DefinedColumn

    @property
    def is_same(self) -> bool:
        """Returns whether it is the same type under another name."""
        return (self.was.type_oid, self.was.typmod) == (self.now.type_oid, self.now.typmod)


@dataclass(frozen=True, slots=True)
class NotNullAltered:
    """``now.not_null`` is the new state."""

    now: DefinedColumn


@dataclass(frozen=True, slots=True)
class KeyAltered:
    """The primary key or the replica identity has other columns; by number and in order, () if there is none."""

    primary_was: tuple[int, ...]
    primary_now: tuple[int, ...]
    identity_was: tuple[int, ...]
    identity_now: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionAttached:
    """A table became a partition, or was made as one."""

    partition: DefinedPartition


@dataclass(frozen=True, slots=True)
class PartitionDetached:
    """A partition was detached, or dropped."""

    partition: DefinedPartition


Difference = (
    TableRenamed
    | ColumnAdded
    | ColumnPublished
    | ColumnDropped
    | ColumnRenamed
    | TypeAltered
    | NotNullAltered
    | KeyAltered
    | PartitionAttached
    | PartitionDetached
)


def differences_of(definition: PublishedDefinition) -> list[Difference]:
    """Returns the differences between a table's definition and its previous one; empty if the previous one is unknown,
    if neither side is published, and if the event is not about an existing table."""
    event, was = definition.event, definition.previous
    # a single kind: only a table that exists on both sides has differences
    if not (isinstance(event, TableDefined | TablePublished) and isinstance(was, TableDefinition)):
        return []
    return differences(was, event.table) if was.is_published and event.table.is_published else []


def differences(was: TableDefinition, now: TableDefinition) -> list[Difference]:
    """Returns the differences between two definitions of one table, both published, sorted so that they can be applied:
    columns go before others use their names."""
    assert (was.is_published, now.is_published) == (True, True), "rows of a table that is not published carry nothing"
    found: list[Difference] = []
    if (was.schema, was.name) != (now.schema, now.name):
        found.append(TableRenamed((was.schema, was.name), (now.schema, now.name)))
    return [*found, *_of_columns(was, now), *_of_key(was, now), *_of_partitions(was, now)]


def alters_values(was: TypeDefined, now: TypeDefined) -> bool:
    """Returns whether a composite type's values have other attributes, or a domain allows other values. Parts that one
    side lacks are not compared."""
    if not (was.is_whole and now.is_whole):
        return False
    before, later = ([(each.number, each.name, each.type_oid) for each in one.attributes or ()] for one in (was, now))
    return (before, was.constraints, was.not_null) != (later, now.constraints, now.not_null)


def _of_columns(was: TableDefinition, now: TableDefinition) -> Iterator[Difference]:
    before = {column.number: column for column in was.columns}
    sent_before = {column.number: column for column in was.columns if column.is_published}
    sent = {column.number: column for column in now.columns if column.is_published}
    for number in sorted(sent_before.keys() - sent.keys()):
        yield ColumnDropped(sent_before[number])
    kept = [(sent_before[number], sent[number]) for number in sorted(sent_before.keys() & sent.keys())]
    for earlier, later in kept:
        if earlier.name != later.name:
            yield ColumnRenamed(earlier, later)
    for earlier, later in kept:
        altered = TypeAltered(earlier, later)
        if not altered.is_same or earlier.type_name != later.type_name:
            yield altered
        if earlier.not_null != later.not_null:
            yield NotNullAltered(later)
    for number in sorted(sent.keys() - sent_before.keys()):
        yield ColumnPublished(sent[number]) if number in before else ColumnAdded(sent[number])


def _of_key(was: TableDefinition, now: TableDefinition) -> Iterator[Difference]:
    keys = KeyAltered(primary_key_of(was), primary_key_of(now), key_of(was), key_of(now))
    if (keys.primary_was, keys.identity_was) != (keys.primary_now, keys.identity_now):
        yield keys


def primary_key_of(table: TableDefinition) -> tuple[int, ...]:
    keyed = sorted((c.primary_key_position, c.number) for c in table.columns if c.primary_key_position is not None)
    return tuple(number for _, number in keyed)


def key_of(table: TableDefinition) -> tuple[int, ...]:
    """Returns the numbers of the columns that identify a row, as ``Table.key`` has it."""
    primary_key = primary_key_of(table)
    if table.replica_identity in (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING):
        return primary_key
    return primary_key if set(primary_key) == set(table.identity_columns) else tuple(sorted(table.identity_columns))


def _of_partitions(was: TableDefinition, now: TableDefinition) -> Iterator[Difference]:
    before = {partition.oid: partition for partition in was.partitions}
    later = {partition.oid: partition for partition in now.partitions}
    for oid in sorted(before.keys() - later.keys()):
        yield PartitionDetached(before[oid])
    for oid in sorted(later.keys() - before.keys()):
        yield PartitionAttached(later[oid])
