"""Properties that a source and a target should share: encoding, collation, and user-defined types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString


@dataclass(frozen=True, slots=True)
class DatabaseLocale:
    """A database's locale, from pg_database. ``provider`` is "c" (libc), "i" (ICU) or "b" (built in), "" before
    PostgreSQL 15."""

    encoding: str
    collation: str
    character_type: str
    provider: str


LOCALE_QUERY = """
    SELECT pg_encoding_to_char(d.encoding)::text AS encoding, d.datcollate::text AS collation, d.datctype::text AS character_type,
           coalesce(to_jsonb(d) ->> 'datlocprovider', '') AS provider
      FROM pg_database d
     WHERE d.datname = current_database()
"""


DatabaseIdentity = tuple[str, str, str]

IDENTITY_QUERY: LiteralString = """
    SELECT system_identifier::text, extract(epoch FROM pg_postmaster_start_time())::text, current_database()::text
      FROM pg_control_system()
"""
"""Two databases that have it are one. A server that was made by a base backup of another has its system identifier, but has not
been started at the same microsecond."""


@dataclass(frozen=True, slots=True)
class UserType:
    """A type of replicated columns that is not built in.

    ``name`` is ``format_type``'s, ``extension`` the one that creates it, "" for none; ``creations`` are the statements
    that make it elsewhere, none where that takes more. ``checks`` are the statements that give a domain its CHECK
    constraints: expressions of its owner, which would run elsewhere for each row, with the rights of the role that
    writes the row.
    """

    name: str
    schema: str
    extension: str
    creations: tuple[str, ...]
    checks: tuple[str, ...] = ()


def schema_creation(name: str) -> str:
    """``name`` is quoted as SQL wants it."""
    return f"CREATE SCHEMA IF NOT EXISTS {name}"
