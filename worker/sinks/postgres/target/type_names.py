"""The name of a type: as the source writes it, and as the target calls the same type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

import psycopg

from pgsluice.shared import telemetry
from pgsluice.worker.sinks.postgres.target.connection import Connection

_log = telemetry.logger(__name__)

TEXT = "text"

_IDENTIFIER = r'(?:"(?:[^"]|"")+"|[a-z_][a-z0-9_]*)'
_TYPE_NAME = re.compile(
    rf"""(?P<name>(?:character|bit)[ ]varying|double[ ]precision|{_IDENTIFIER}(?:\.{_IDENTIFIER})?)
    (?P<fields>(?<=interval)[ ](?:year|month|day|hour|minute|second)(?:[ ]to[ ](?:month|hour|minute|second))?)?
    (?P<modifiers>\((?:-?[0-9]+|[A-Za-z][A-Za-z0-9]*)(?:,(?:-?[0-9]+|[A-Za-z][A-Za-z0-9]*))*\))?
    (?P<zone>[ ]with(?:out)?[ ]time[ ]zone)?
    (?P<dimensions>(?:\[\])*)""",
    re.VERBOSE,
)
"""A type as ``format_type`` writes it: "character varying(7)[]", "timestamp(3) with time zone", "interval day to second(3)"."""


@dataclass(frozen=True, slots=True)
class TypeName:
    """A name, taken apart: ``base`` without what follows, as "character varying" and "timestamp with time zone"."""

    base: str
    fields: str
    modifiers: tuple[int, ...]
    is_array: bool

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns None for what is no name of a type, or has modifiers that are no numbers, as PostGIS's."""
        parts = _TYPE_NAME.fullmatch(text)
        if parts is None:
            return None
        modifiers = parts["modifiers"].strip("()").split(",") if parts["modifiers"] else []
        if not all(each.lstrip("-").isdecimal() for each in modifiers):
            return None
        base = parts["name"] + (parts["zone"] or "")
        return cls(base, parts["fields"] or "", tuple(map(int, modifiers)), bool(parts["dimensions"]))


_TYPE_HERE = """
SELECT format_type(coalesce(to_regtype(%(name)s)::oid, (
           SELECT min(t.oid) FROM pg_type t
             JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
            WHERE t.typname = (parse_ident(%(name)s, false))[2] HAVING count(*) = 1)), %(typmod)s)
"""
"""A type of an extension may be in any schema, as extensions are: there is one extension of a name in a database."""


def known_type(connection: Connection, table: str, column: str, type_name: str) -> str:
    """Returns the type as ``type_here`` does, and text where the target has no such type."""
    known = type_here(connection, type_name)
    if known is not None:
        return known
    _log.warning(
        "the target does not have a column's type; the column becomes text",
        table=table,
        column=column,
        type=type_name,
    )
    return TEXT


def type_here(connection: Connection, type_name: str) -> str | None:
    """Returns the target's name of the source's type ``type_name``, safe to put into a statement; None when the target has
    none. Where the target has one, ``type_name`` is safe too.

    PostgreSQL reads a name as its parser does, with comments and whatever else is no part of it. So the text is the target's own,
    and of the source's only the modifiers."""
    parts = _TYPE_NAME.fullmatch(type_name)
    if parts is None:
        return None
    # Without a length "character" and "bit" would have length one: format_type returns "bpchar" and '"bit"' for -1.
    parameters = {"name": parts["name"] + (parts["zone"] or ""), "typmod": None if parts["modifiers"] else -1}
    try:
        with connection.transaction():
            row = connection.execute(_TYPE_HERE, parameters).fetchone()
    except psycopg.errors.SyntaxError:
        return None
    if row is None or row[0] is None:
        return None
    name, space, zone = row[0].partition(" with")  # modifiers of times precede it
    return f"{name}{parts['fields'] or ''}{parts['modifiers'] or ''}{space}{zone}{parts['dimensions']}"


def type_place(connection: Connection, type_name: str) -> tuple[str, str] | None:
    """Returns schema and name of what ``type_name`` is, or is an array of; None for a type that every server has."""
    parts = _TYPE_NAME.fullmatch(type_name)
    if parts is None or "." not in parts["name"]:
        return None
    row = connection.execute("SELECT parse_ident(%s)", [parts["name"]]).fetchone()
    found = row[0] if row else []
    return (found[0], found[1]) if len(found) == 2 else None
