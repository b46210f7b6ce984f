"""Statements that bring the target's types to a definition of the source. The target may lack a type, so it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.definition import DefinedColumn, TypeDefined
from pgsluice.worker.sinks.postgres.definitions.type_statements import (
    Statement,
    TypeHere,
    added_attributes,
    composite_statements,
    domain_statements,
    enum_statements,
    moving,
)
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.type_names import known_type, type_here, type_place

_ENUM, _COMPOSITE, _DOMAIN = "e", "c", "d"

_FIND = """
SELECT t.typtype,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY a.attnum),
       ARRAY(SELECT c.conname::text FROM pg_constraint c WHERE c.contypid = t.oid AND c.contype = 'c'), t.typnotnull
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_class r ON r.oid = t.typrelid
 WHERE n.nspname = %s AND t.typname = %s AND coalesce(r.relkind, 'c') = 'c'
"""
"""The row type of a table is the table's business."""


def find_type(connection: Connection, place: tuple[str, str]) -> TypeHere | None:
    row = connection.execute(_FIND, place).fetchone()
    if row is None:
        return None
    kind, attributes, constraints, not_null = row
    return TypeHere(place, kind, tuple(attributes), frozenset(constraints), not_null)


def renaming_of(connection: Connection, was: tuple[str, str], now: tuple[str, str]) -> list[Statement]:
    """Returns no statement where the target has no such type, or has one of the new name."""
    if was == now or find_type(connection, was) is None or find_type(connection, now) is not None:
        return []
    return list(moving(sql.SQL("TYPE"), was, now))


def renaming_by_column(connection: Connection, was: DefinedColumn, now: DefinedColumn) -> list[Statement]:
    """Returns statements for a type whose renaming only a column shows."""
    if type_here(connection, now.type_name) is not None or type_here(connection, was.type_name) is None:
        return []
    earlier, later = type_place(connection, was.type_name), type_place(connection, now.type_name)
    return renaming_of(connection, earlier, later) if earlier is not None and later is not None else []


def labelling(connection: Connection, was: TypeDefined, now: TypeDefined) -> list[Statement]:
    """Returns the statements for labels of an enum."""
    here = find_type(connection, (now.schema, now.name))
    return enum_statements(*here.place, was.labels, now.labels) if here is not None and here.kind == _ENUM else []


def altering_values(connection: Connection, was: TypeDefined, now: TypeDefined) -> Iterator[Statement]:
    """Alters the attributes of a composite type, or the checks of a domain, one statement after the other. Where the target has
    text or json instead, there is nothing to alter.

    Raises TerminalError when the target's composite type has other attributes afterwards: its values would be read wrongly."""
    here = find_type(connection, (now.schema, now.name))
    if here is None or here.kind != now.kind:
        return
    if here.kind == _DOMAIN:
        yield from domain_statements(here, was, now)
    if here.kind == _COMPOSITE:
        name = ".".join(here.place)
        types = [known_type(connection, name, each.name, each.type_name) for each in added_attributes(was, now)]
        yield from composite_statements(here, was, now, types)
        after, expected = find_type(connection, here.place), [each.name for each in now.attributes or ()]
        found = [] if after is None else [*after.attributes]
        if len(found) != len(expected) or (found != expected and set(found) == set(expected)):
            raise TerminalError(
                f"type '{name}' at the target has the attributes ({', '.join(found)}), and the"
                f" source's has ({', '.join(expected)})",
                "make the target's type that of the source; then start again, nothing of the transaction was applied",
            )
