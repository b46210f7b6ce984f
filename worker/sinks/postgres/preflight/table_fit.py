"""Do the target's tables take the rows that come: columns, types, keys, rights. What a batch would be refused for is an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.preflight.database import UserType, schema_creation
from pgsluice.shared.preflight.finding import Findings, Severity, Subject, listed
from pgsluice.shared.wire.table import Column, Table
from pgsluice.worker.definitions.policy import DefinitionAction, DefinitionKind, Policies
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.own.known_tables import NOTHING_KNOWN, Known, KnownTables, known_columns
from pgsluice.worker.sinks.postgres.own.own_tables import missing_tables
from pgsluice.worker.sinks.postgres.own.pending_keys import PendingKeys
from pgsluice.worker.sinks.postgres.preflight.held_rows import holds_rows
from pgsluice.worker.sinks.postgres.preflight.target_role import TargetRole
from pgsluice.worker.sinks.postgres.target.catalog import LEFT_OUT, Catalog, CatalogEntry, find_table, read_catalog
from pgsluice.worker.sinks.postgres.target.connection import Connection, grant_of_replica_role
from pgsluice.worker.sinks.postgres.target.key_types import check_key_types
from pgsluice.worker.sinks.postgres.target.sequences import owned_sequences
from pgsluice.worker.sinks.postgres.target.table import (
    TargetTable,
    check_row_security,
    has_unique_key,
    key_error,
    missing_error,
    target_table,
)
from pgsluice.worker.sinks.postgres.target.type_names import type_here

SHOWN = 5
NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")

_GRANTS: LiteralString = """
    SELECT ARRAY(SELECT p FROM unnest(%(needed)s::text[]) AS p WHERE NOT has_table_privilege(c.oid, p)),
           has_schema_privilege(c.relnamespace, 'USAGE'),
           (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A'))::int,
           ARRAY(SELECT r.conname::text FROM pg_constraint r WHERE r.conrelid = c.oid AND r.contype = 'f' ORDER BY 1),
           (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled = 'A')::int
      FROM pg_class c WHERE c.oid = %(oid)s
"""

_TYPES: LiteralString = """
    SELECT a.attnum, format_type(a.atttypid, a.atttypmod), t.typcategory::text
      FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""

_CATEGORY: LiteralString = "SELECT typcategory::text FROM pg_type WHERE oid = to_regtype(%s)"

_MISSING_SCHEMAS: LiteralString = """
    SELECT name, oid IS NOT NULL, coalesce(has_schema_privilege(oid, 'CREATE'), false)
      FROM unnest(%s::text[]) AS name LEFT JOIN pg_namespace ON nspname = name ORDER BY 1
"""

_WHOLE_NUMBERS = ("smallint", "integer", "bigint", "numeric")
"""Each holds what those before it hold."""

_TEXT = "S"


@dataclass(frozen=True, slots=True)
class _Grants:
    """``triggers`` fire for ordinary sessions, ``always`` even with triggers disabled."""

    lacking: list[str]
    may_use_schema: bool
    triggers: int
    foreign_keys: list[str]
    always: int


class TableFit:
    """One check of the target's tables, in a session whose session_replication_role is the worker's. ``role`` is the
    worker's."""

    def __init__(
        self, connection: Connection, settings: PostgresSinkSettings, role: TargetRole, owner: tuple[str, str], policies: Policies
    ) -> None:
        """``owner`` is group and worker."""
        self._connection = connection
        self._settings = settings
        self._role = role
        self._owner = owner
        self._policies = policies
        self._grants: list[str] = []
        self._out_of_reach: list[str] = []
        self._is_from_catalog = False
        self._is_replica = connection.execute("SHOW session_replication_role").fetchone() == ("replica",)
        self.found = Findings(Subject.TARGET)

    def look(self, tables: Sequence[Table], types: Sequence[UserType], *, is_from_catalog: bool) -> None:
        """Checks tables and types, as ``Incoming`` describes."""
        self._is_from_catalog = is_from_catalog
        knows = not missing_tables(self._connection) and self._role.may_use_schema
        known: Known = KnownTables.of(*self._owner).read(self._connection, tables) if knows else NOTHING_KNOWN
        catalog = read_catalog(self._connection, tables)
        missing = [table for table in tables if self._look_at(table, catalog, known, knows=knows) is None]
        self._note_rights()
        self._look_at_types(types)
        self._look_at_schemas(missing)

    @contextmanager
    def _looking(self, check: str, table: Table) -> Iterator[None]:
        """Like ``Findings.looking``; the error's statements are kept only when the types in them are types."""
        with self.found.looking(check):
            try:
                yield
            except TerminalError as error:
                if self._is_from_catalog or all(self._is_known(column.type_name) for column in table.columns):
                    raise
                raise TerminalError(error.fact, error.remedy) from None

    def _look_at(self, table: Table, catalog: Catalog, known: Known, *, knows: bool) -> CatalogEntry | None:
        place, entry = (table.schema, table.name), catalog.get((table.schema, table.name))
        found_oid = None if entry is None else entry.oid
        with self._looking("target-table", table):
            tables = KnownTables.of(*self._owner)
            tables.check_name(self._connection, table, known, found_oid)
            moved = tables.moved_to(self._connection, table, known, found_oid)
            if moved is not None:
                place, entry = moved, find_table(self._connection, *moved)
        if entry is None:
            if not self._settings.sync_schema:
                with self._looking("target-table-missing", table):
                    raise missing_error(table)
            return None
        self._look_at_rights(table, place, entry)
        self._look_at_rows(table, place, entry, known)
        with self._looking("target-row-security", table):
            check_row_security(self._connection, table, entry)
        with self._looking("target-columns", table):
            leaves_out = self._policies.action(DefinitionKind.ADD_COLUMN, table.source_name) is DefinitionAction.IGNORE
            columns = known_columns(table, entry.oid, known)
            target = target_table(table, entry, place, columns, leaves_out=leaves_out)
            self._look_at_columns(target)
            self._look_at_key(table, target, entry, knows=knows)
        if self._settings.sync_sequences:
            with self._looking("target-sequence-privileges", table):
                owned_sequences(self._connection, [column.name for column in table.columns], entry.oid)
        return entry

    def _look_at_key(self, table: Table, target: TargetTable, entry: CatalogEntry, *, knows: bool) -> None:
        is_pending = knows and PendingKeys(*self._owner).include(self._connection, table)
        with self._looking("target-key", table):
            if not has_unique_key(target, entry) and not is_pending:
                raise key_error(target, entry.partition_columns)
        with self._looking("target-key-type", table):
            check_key_types(target, entry)

    def _look_at_rows(self, table: Table, place: tuple[str, str], entry: CatalogEntry, known: Known) -> None:
        """Checks the rows of a table that the worker did not write to yet."""
        is_written = any(each.target_oid == entry.oid for each in known.get(table.oid, ()))
        if not is_written and holds_rows(self._connection, place, entry):
            truncate = sql.SQL("TRUNCATE TABLE {}").format(sql.Identifier(*place)).as_string()
            fact = f"table '{table.qualified_name}' at the target holds rows that this worker did not write"
            remedy = f"nothing, if they may stay, and copied rows may overwrite those of the same key; else: {truncate}"
            self.found.note("target-table-not-empty", Severity.WARNING, fact, remedy, choices=(truncate,))

    def _look_at_rights(self, table: Table, place: tuple[str, str], entry: CatalogEntry) -> None:
        row = self._connection.execute(_GRANTS, {"needed": list(NEEDED), "oid": entry.oid}).fetchone()
        assert row is not None
        grants, name = _Grants(*row), sql.Identifier(*place).as_string()
        if not grants.may_use_schema:
            self._grants.append(f"GRANT USAGE ON SCHEMA {sql.Identifier(place[0]).as_string()} TO {self._role.name}")
        if grants.lacking:
            self._grants.append(f"GRANT {', '.join(grants.lacking)} ON {name} TO {self._role.name}")
        if grants.lacking or not grants.may_use_schema:
            self._out_of_reach.append(table.qualified_name)
        self._look_at_side_effects(table, grants)

    def _note_rights(self) -> None:
        """Notes one finding for all tables: they mostly lack the same."""
        if self._grants:
            statements = tuple(dict.fromkeys(self._grants))
            fact = f"the target's role {self._role.user!r} lacks rights on {listed(self._out_of_reach)}"
            remedy = "; ".join(statements[:SHOWN]) + ("; and more like these" if len(statements) > SHOWN else "")
            self.found.note("target-table-privileges", Severity.ERROR, fact, remedy, statements=statements)

    def _look_at_side_effects(self, table: Table, grants: _Grants) -> None:
        ordinary, name = grants.triggers - grants.always, f"table '{table.qualified_name}' at the target"
        if self._is_replica:
            if ordinary:
                fact = f"triggers of {name} do not fire for replicated rows ({ordinary}): session_replication_role is replica"
                remedy = (
                    "ALTER TABLE … ENABLE ALWAYS TRIGGER makes one fire; target-disable-foreign-keys: false has all of them fire"
                )
                self.found.note("target-triggers", Severity.INFO, fact, remedy)
        elif grants.triggers:
            fact = f"triggers of {name} fire for replicated rows too ({grants.triggers} of them)"
            remedy = f"{self._way_to_replica()}, or disable them, when they did their work at the source already"
            self.found.note("target-triggers", Severity.WARNING, fact, remedy)
        if grants.always and self._is_replica:
            fact = f"triggers of {name} fire for replicated rows too, because of ENABLE ALWAYS ({grants.always} of them)"
            remedy = "disable them, when they did their work at the source already"
            self.found.note("target-triggers", Severity.WARNING, fact, remedy)
        if grants.foreign_keys and not self._is_replica:
            fact = f"PostgreSQL checks foreign keys of {name} for replicated rows: {', '.join(grants.foreign_keys)}"
            remedy = f"{self._way_to_replica()}, or replicate the tables that they point to as well"
            self.found.note("target-foreign-keys", Severity.WARNING, fact, remedy)

    def _way_to_replica(self) -> str:
        if self._settings.disable_foreign_keys is False:
            return "leave target-disable-foreign-keys out"
        grant = grant_of_replica_role(self._connection)
        return f"run there: {grant}" if grant else "connect as a superuser"

    def _look_at_columns(self, target: TargetTable) -> None:
        there = {number: (name, category) for number, name, category in self._connection.execute(_TYPES, [target.oid]).fetchall()}
        for column, at_target in zip(target.table.columns, target.columns, strict=True):
            if at_target is not LEFT_OUT and at_target.number in there:
                name, category = there[at_target.number]
                self._compare(target, column, at_target.name, name, category)

    def _compare(self, target: TargetTable, column: Column, name: str, type_name: str, category: str) -> None:
        here = self._type_here(column.type_name)
        if type_name in (column.type_name, here) or _holds(type_name, column.type_name):
            return
        row = self._connection.execute(_CATEGORY, [here]).fetchone() if here else None
        source_category = None if row is None else row[0]
        table, identifier = target.identifier.as_string(), sql.Identifier(name).as_string()
        wanted = here or column.type_name
        cast = f"{identifier}::text" + ("" if wanted == "text" else f"::{wanted}")
        cure = f"ALTER TABLE {table} ALTER COLUMN {identifier} TYPE {wanted} USING {cast}"
        if type_name == "text":
            self._look_at_text(target, name, here, cure)
            return
        fact = (
            f"column '{name}' of table '{target.table.qualified_name}' at the target is {type_name}, the source's is"
            f" {column.type_name}"
        )
        cures = (cure,) if here else ()
        fits = source_category is None or source_category == category or category == _TEXT
        if fits:
            remedy = f"values that do not fit become dead letters; to be sure: {cure}"
            self.found.note("target-column-type", Severity.WARNING, fact, remedy, statements=cures)
        else:
            self.found.note("target-column-type", Severity.ERROR, fact, cure, statements=cures)

    def _look_at_text(self, target: TargetTable, name: str, here: str | None, cure: str) -> None:
        """Text holds everything; a column may be of it because its type was missing when the table was made."""
        if here and "." in here:
            fact = f"column '{name}' of table '{target.table.qualified_name}' at the target is text, and type {here} exists there"
            remedy = f"nothing, when that is meant; else: {cure}"
            self.found.note("target-column-text", Severity.INFO, fact, remedy, choices=(cure,))

    def _look_at_schemas(self, missing: Sequence[Table]) -> None:
        """Checks the schemas of tables that must be created."""
        names = sorted({table.schema for table in missing}) if self._settings.sync_schema else []
        for name, is_there, may_create in self._connection.execute(_MISSING_SCHEMAS, [names]).fetchall():
            if may_create or (not is_there and self._role.may_create_schemas):
                continue
            statements = (() if is_there else (_schema(name),)) + (self._schema_grant(name),)
            fact = f"the target's role {self._role.user!r} may not create tables in schema {name}, where some are missing"
            self.found.note("target-schema-privileges", Severity.ERROR, fact, "; ".join(statements), statements=statements)

    def _schema_grant(self, name: str) -> str:
        return f"GRANT USAGE, CREATE ON SCHEMA {sql.Identifier(name).as_string()} TO {self._role.name}"

    def _look_at_types(self, types: Sequence[UserType]) -> None:
        """A schema that is made for a type is the administrator's: the role could not make tables in it."""
        for each in types:
            if self._is_known(each.name):
                continue
            statements, choices = each.creations, each.checks
            if _schema(each.schema) in statements:
                statements = (*statements, self._schema_grant(each.schema))
            what = f"extension {each.extension}" if each.extension else "it"
            fact = f"type {each.name} of replicated columns does not exist at the target: tables that are made get text instead"
            remedy = "; ".join(statements) if statements else f"make {what} there, as at the source"
            if choices:
                remedy += f"; and check its CHECK constraints first, which run there for each row: {'; '.join(choices)}"
            self.found.note("target-type-missing", Severity.WARNING, fact, remedy, statements=statements, choices=choices)

    def _is_known(self, type_name: str) -> bool:
        return self._type_here(type_name) is not None

    def _type_here(self, type_name: str) -> str | None:
        """Like ``type_here``; the source's name if the role may not use the schema yet."""
        try:
            return type_here(self._connection, type_name)
        except psycopg.errors.InsufficientPrivilege:
            return type_name


def _schema(name: str) -> str:
    return schema_creation(sql.Identifier(name).as_string())


def _holds(target: str, source: str) -> bool:
    """Returns whether every value of the type ``source`` is one of the type ``target``."""
    if target in _WHOLE_NUMBERS and source in _WHOLE_NUMBERS:
        return _WHOLE_NUMBERS.index(target) >= _WHOLE_NUMBERS.index(source)
    base, _, length = target.partition("(")
    source_base, _, source_length = source.partition("(")
    if base == "numeric" and not length:
        return source_base == "numeric"
    if base == "character varying" and source_base in ("character varying", "character", "bpchar"):
        return not length or (source_length != "" and int(length.rstrip(")")) >= int(source_length.rstrip(")")))
    return False
