"""A definition's changes, in words. No value is among them: neither a default nor a label of an enum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

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
    alters_values,
    differences_of,
)
from pgsluice.shared.wire.definition import (
    DefinedColumn,
    DefinitionUnknown,
    DomainConstraint,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeAttribute,
    TypeDefined,
)
from pgsluice.shared.wire.published_definition import PublishedDefinition

_REASONS = {1: "logged or unlogged", 2: "a default for each row", 4: "a type", 8: "an access method"}
"""Reasons of a rewrite, as PostgreSQL adds them up."""


def in_words(definition: PublishedDefinition) -> list[str]:
    """Returns each change, at least one: ``added column note text``."""
    event, was = definition.event, definition.previous
    match event:
        case TableDefined(table=table) | TablePublished(table=table):
            return _of_table(definition, table)
        case TableUnpublished():
            return ["it is not published any more"]
        case TableGone():
            return ["dropped the table"]
        case TableRewritten(reason=reason):
            reasons = [text for bit, text in _REASONS.items() if reason & bit]
            return [f"rewrote the table ({', '.join(reasons) or f'reason {reason}'})"]
        case TypeDefined():
            # a single kind: the previous definition is a table or a type, and nothing else
            return [*_of_type(was, event)] if isinstance(was, TypeDefined) else ["described the type for the first time"]
        case DefinitionUnknown(sqlstate=sqlstate):
            return [f"the source could not describe its effect (SQLSTATE {sqlstate})"]
        case unreachable:
            assert_never(unreachable)


def difference_in_words(difference: Difference, table: TableDefinition) -> str:
    """``table`` is as it is now."""
    match difference:
        case TableRenamed(was, now):
            return f"renamed the table from {'.'.join(was)} to {'.'.join(now)}"
        case ColumnAdded(column):
            return f"added column {_typed(column)}"
        case ColumnPublished(column):
            return f"published column {_typed(column)}"
        case ColumnDropped(column):
            return f"dropped column {column.name}"
        case ColumnRenamed(earlier, later):
            return f"renamed column {earlier.name} to {later.name}"
        case TypeAltered(earlier, later) if difference.is_same:
            return f"renamed the type of {later.name} from {earlier.type_name} to {later.type_name}"
        case TypeAltered(earlier, later):
            return f"altered the type of {later.name} from {earlier.type_name} to {later.type_name}"
        case NotNullAltered(column):
            return f"{'set' if column.not_null else 'dropped'} NOT NULL of {column.name}"
        case KeyAltered(primary_now=primary, identity_now=identity):
            return _of_key(primary, identity, table)
        case PartitionAttached(partition):
            return f"attached partition {partition.schema}.{partition.name}"
        case PartitionDetached(partition):
            return f"detached partition {partition.schema}.{partition.name}"
        case unreachable:
            assert_never(unreachable)


def _of_table(definition: PublishedDefinition, table: TableDefinition) -> list[str]:
    was = definition.previous
    if not table.is_published:
        return ["described the table, which is not published"]
    if not isinstance(was, TableDefinition):
        return ["described the table for the first time"]
    if not was.is_published:
        return ["it is published now"]
    found = [difference_in_words(difference, table) for difference in differences_of(definition)]
    return found or ["nothing that rows carry"]


def _of_key(primary: Sequence[int], identity: Sequence[int], table: TableDefinition) -> str:
    names = {column.number: column.name for column in table.columns}
    keys = [f"primary key ({', '.join(names[number] for number in primary)})"] if primary else ["no primary key"]
    if tuple(identity) != tuple(primary):
        keys.append(
            f"rows known by ({', '.join(names[number] for number in identity)})" if identity else "rows not distinguished"
        )
    return f"altered the key: {', '.join(keys)}"


def _of_type(was: TypeDefined, now: TypeDefined) -> Iterator[str]:
    before, later = ({label.oid: label.label for label in each.labels} for each in (was, now))
    added = len(later.keys() - before.keys())
    renamed = sum(before[oid] != later[oid] for oid in before.keys() & later.keys())
    if (was.schema, was.name) != (now.schema, now.name):
        yield f"renamed the type from {was.schema}.{was.name} to {now.schema}.{now.name}"
    if added:
        yield f"added {added} {'label' if added == 1 else 'labels'} to the type"
    if renamed:
        yield f"renamed {renamed} {'label' if renamed == 1 else 'labels'} of the type"
    if alters_values(was, now):
        yield from _of_parts("attribute", _named(was.attributes), _named(now.attributes))
        types = {each.number: each for each in was.attributes or ()}
        for each in now.attributes or ():
            if each.number in types and types[each.number].type_oid != each.type_oid:
                yield f"altered the type of attribute {each.name} from {types[each.number].type_name} to {each.type_name}"
        yield from _of_parts("constraint", _named(was.constraints), _named(now.constraints))
        if was.not_null != now.not_null:
            yield f"{'set' if now.not_null else 'dropped'} NOT NULL of the domain"
    elif (was.schema, was.name, was.labels) == (now.schema, now.name, now.labels):
        yield "nothing that rows carry"


def _named(parts: Sequence[TypeAttribute] | Sequence[DomainConstraint] | None) -> dict[int, str]:
    """Returns the names, by what stays through renames."""
    return {each.number if isinstance(each, TypeAttribute) else each.oid: each.name for each in parts or ()}


def _of_parts(what: str, was: Mapping[int, str], now: Mapping[int, str]) -> Iterator[str]:
    for number in sorted(was.keys() | now.keys()):
        if number not in now:
            yield f"dropped {what} {was[number]}"
        elif number not in was:
            yield f"added {what} {now[number]}"
        elif was[number] != now[number]:
            yield f"renamed {what} {was[number]} to {now[number]}"


def _typed(column: DefinedColumn) -> str:
    return f"{column.name} {column.type_name}"
