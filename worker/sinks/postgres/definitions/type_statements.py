"""The statements that bring a type of the target from one definition of the source to the next. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.shared.wire.definition import EnumLabel, TypeAttribute, TypeDefined

Statement = sql.Composed


@dataclass(frozen=True, slots=True)
class TypeHere:
    """A type of the target. ``kind`` is its ``pg_type.typtype``; ``attributes`` are the names of a composite type's, in order;
    ``constraints`` are those of a domain's checks."""

    place: tuple[str, str]
    kind: str
    attributes: tuple[str, ...] = ()
    constraints: frozenset[str] = frozenset()
    not_null: bool = False

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*self.place)


def enum_statements(schema: str, name: str, was: Sequence[EnumLabel], now: Sequence[EnumLabel]) -> list[Statement]:
    """Returns statements for renamed labels, then for added ones, in their places."""
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


def _adding_label(identifier: sql.Identifier, labels: Sequence[EnumLabel], index: int) -> Statement:
    statement = sql.SQL("ALTER TYPE {} ADD VALUE IF NOT EXISTS {}").format(identifier, sql.Literal(labels[index].label))
    if index == 0:
        return statement + (sql.SQL(" BEFORE {}").format(sql.Literal(labels[1].label)) if len(labels) > 1 else sql.SQL(""))
    return statement + sql.SQL(" AFTER {}").format(sql.Literal(labels[index - 1].label))


def added_attributes(was: TypeDefined, now: TypeDefined) -> list[TypeAttribute]:
    """Returns attributes that are new or have another type: the target has to know their types."""
    before = {each.number: each.type_oid for each in was.attributes or ()}
    return [each for each in now.attributes or () if before.get(each.number) != each.type_oid]


def composite_statements(here: TypeHere, was: TypeDefined, now: TypeDefined, types: Sequence[str]) -> Iterator[Statement]:
    """``types`` are what the target calls those of ``added_attributes``. Leaves attributes that are right already."""
    before = {each.number: each for each in was.attributes or ()}
    later = {each.number: each for each in now.attributes or ()}
    names = set(here.attributes)
    for number in before.keys() - later.keys():
        if before[number].name in names:
            yield _alter(here, "TYPE", "DROP ATTRIBUTE {} CASCADE", before[number].name)
            names.remove(before[number].name)
    for number in before.keys() & later.keys():
        old, new = before[number].name, later[number].name
        if old != new and old in names:
            yield _alter(here, "TYPE", "RENAME ATTRIBUTE {} TO {} CASCADE", old, new)
            names = names - {old} | {new}
    for each, kind in zip(added_attributes(was, now), types, strict=True):
        if each.number in before:
            yield _alter(here, "TYPE", "ALTER ATTRIBUTE {} TYPE ", each.name) + sql.SQL(kind + " CASCADE")
        elif each.name not in names:
            yield _alter(here, "TYPE", "ADD ATTRIBUTE {} ", each.name) + sql.SQL(kind + " CASCADE")


def domain_statements(here: TypeHere, was: TypeDefined, now: TypeDefined) -> Iterator[Statement]:
    """Has the target's domain take what the source's takes from now on. Sets nothing that the source's refuses from now on, as
    with NOT NULL of a column."""
    before = {each.oid: each.name for each in was.constraints or ()}
    later = {each.oid: each.name for each in now.constraints or ()}
    for oid, name in before.items():
        if name not in here.constraints:
            continue
        if oid not in later:
            yield _alter(here, "DOMAIN", "DROP CONSTRAINT {}", name)
        elif later[oid] != name:
            yield _alter(here, "DOMAIN", "RENAME CONSTRAINT {} TO {}", name, later[oid])
    if here.not_null and was.not_null and not now.not_null:
        yield _alter(here, "DOMAIN", "DROP NOT NULL")


def _alter(here: TypeHere, what: str, action: str, *names: str) -> Statement:
    return sql.SQL(f"ALTER {what} {{}} ").format(here.identifier) + sql.SQL(action).format(*map(sql.Identifier, names))


def moving(what: sql.SQL, was: tuple[str, str], now: tuple[str, str]) -> Iterator[Statement]:
    if now[0] != was[0]:
        yield sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(now[0]))
        yield sql.SQL("ALTER {} {} SET SCHEMA {}").format(what, sql.Identifier(*was), sql.Identifier(now[0]))
    if now[1] != was[1]:
        yield sql.SQL("ALTER {} {} RENAME TO {}").format(what, sql.Identifier(now[0], was[1]), sql.Identifier(now[1]))
