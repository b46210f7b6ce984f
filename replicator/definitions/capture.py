"""The capture of definitions at a source: found, installed, brought up to date, removed; and a message requested by hand.

A session that alters tables waits for it no longer than ``LOCK_TIMEOUT_MS``: locks are asked for within that limit, and
again after a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.definitions.installation import (
    LOCK_TIMEOUT_MS,
    Installation,
    event_trigger_names,
    function_names,
    group_comment,
    qualified,
    removal_of_objects,
    removal_of_triggers,
    table_names,
)
from pgsluice.replicator.definitions.owners import check_owners
from pgsluice.replicator.source.source import Source, retry_locked
from pgsluice.shared import telemetry
from pgsluice.shared.errors import MissingPrivilegeError, TerminalError, UsageError
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Pauses
from pgsluice.shared.wire.names import SOURCE_SCHEMA, GroupNames
from pgsluice.shared.wire.table import TablePattern

_ALONE = sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended('pgsluice capture of definitions', 0))")
"""Lock of all groups, which share the schema."""

_IS_BUSY = "another session alters tables, trying again"

ADMINISTRATORS_SQL = "let an administrator run the statements that 'pgsluice ddl sql' prints"

_IS_SUPERUSER: LiteralString = "SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user"

log = telemetry.logger(__name__)

# The catalog is open to every role; functions that resolve a name are not, if the role may not use the schema.
_FOUND: LiteralString = """
    WITH functions AS (SELECT p.oid, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                        WHERE n.nspname = %(schema)s AND p.proname = ANY(%(functions)s)),
         triggers AS (SELECT e.evtenabled = 'A' AND f.oid IS NOT NULL AS works
                        FROM pg_event_trigger e LEFT JOIN functions f ON f.oid = e.evtfoid AND f.proname = %(ddl)s
                       WHERE e.evtname = ANY(%(triggers)s))
    SELECT (SELECT obj_description(f.oid, 'pg_proc') FROM functions f
             WHERE f.proname = %(ddl)s ORDER BY f.oid LIMIT 1) AS comment,
           (SELECT count(*) FROM functions)::int AS functions,
           (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = %(schema)s AND c.relname = ANY(%(tables)s))::int AS tables,
           (SELECT count(*) FROM triggers)::int AS triggers,
           (SELECT count(*) FROM triggers t WHERE t.works)::int AS working_triggers
"""


@dataclass(frozen=True, slots=True)
class Capture:
    """The existing parts of a capture. ``comment`` names its version and group; None without. ``working_triggers`` are
    enabled and call the group's function."""

    comment: str | None
    functions: int
    tables: int
    triggers: int
    working_triggers: int

    def is_whole(self, installation: Installation) -> bool:
        """Returns whether all of it exists, of this version."""
        names = installation.names
        triggers = len(event_trigger_names(names)) if installation.has_triggers else 0
        return (self.comment, self.functions, self.tables, self.working_triggers) == (
            installation.comment,
            len(function_names(names)),
            len(table_names(names)),
            triggers,
        )


async def find_capture(source: Source, names: GroupNames) -> Capture | None:
    """Returns None when no object of it exists. Raises UsageError when it belongs to a group whose name differs in
    ``-`` and ``_``."""
    parameters = {
        "schema": SOURCE_SCHEMA,
        "ddl": names.in_source("ddl"),
        "functions": function_names(names),
        "tables": table_names(names),
        "triggers": event_trigger_names(names),
    }
    [found] = await source.rows_of(Capture, "looking up the capture of schema changes", _FOUND, parameters)
    _check_group(found, names)
    return found if found.functions or found.tables or found.triggers else None


def _check_group(found: Capture, names: GroupNames) -> None:
    other, comma, _ = (found.comment or "").partition(",")
    if comma and other != group_comment(names):
        raise UsageError(
            f"the capture of schema changes {qualified(names, 'ddl')} is that of another {other.removeprefix('pgsluice ')!r}",
            "choose another group name",
        )


async def install_capture(source: Source, installation: Installation, pauses: Pauses = DEFAULT_POLICY.source) -> str:
    """Returns the token that signs the group's messages. Installs what is missing or of another version, and gives the
    capture the patterns of the installation. Its role is the connection's.

    Raises MissingPrivilegeError, with what an administrator can do, when the role may not; TerminalError when another
    role owns a part of it (``check_owners``); TransientError when another session's transaction blocks it.
    """
    await check_owners(source, installation.names)
    found = await find_capture(source, installation.names)
    try:
        if found is None or not found.is_whole(installation):
            await _install(source, installation, pauses)
        else:
            await _note_patterns(source, installation)
        return await read_token(source, installation.names)
    except MissingPrivilegeError as error:
        raise MissingPrivilegeError(error.fact, ADMINISTRATORS_SQL) from None


async def missing_capture(source: Source, installation: Installation) -> tuple[str, str] | None:
    """Returns a fact and a remedy when the capture is not whole and the connection's role is no superuser, which alone is sure to
    be able to install it; None otherwise."""
    found = await find_capture(source, installation.names)
    if found is not None and found.is_whole(installation):
        return None
    [(is_superuser,)] = await source.rows("looking at the role's rights", _IS_SUPERUSER)
    if is_superuser:
        return None
    return (
        "the capture of schema changes (track-ddl) is not installed, and only a superuser can create event triggers, or a role"
        " that the service's provider allows",
        f"{ADMINISTRATORS_SQL}, before the first start; where no role may, those of 'pgsluice ddl sql --no-triggers'",
    )


async def read_token(source: Source, names: GroupNames) -> str:
    """Returns the secret that signs the group's messages now."""
    query = f"SELECT token FROM {qualified(names, 'token')}"
    [(token,)] = await source.rows("reading the token of the capture of schema changes", query)
    return str(token)


async def _install(source: Source, installation: Installation, pauses: Pauses) -> None:
    names = installation.names
    doing = f"installing the capture of schema changes of group {names.group}"
    statements = [step.statement for step in installation.steps()]
    await retry_locked(lambda: _execute(source, doing, statements), pauses, _IS_BUSY)
    log.info("the capture of schema changes is installed", function=qualified(names, "ddl"))


async def _note_patterns(source: Source, installation: Installation) -> None:
    doing = "passing the wanted tables to the capture of schema changes"
    query = f"SELECT schema_like, table_like FROM {qualified(installation.names, 'pattern')}"
    if sorted(await source.rows(doing, query)) != installation.like_pairs:
        await _execute(source, doing, [step.statement for step in installation.pattern_steps()])


async def remove_capture(source: Source, names: GroupNames) -> bool:
    """Returns whether any of it existed. Does not touch other groups' objects; the schema is removed with the last
    object in it.

    Raises MissingPrivilegeError when another role installed it.
    """
    if await find_capture(source, names) is None:
        return False
    doing = f"removing the capture of schema changes of group {names.group}"
    try:
        await _execute(source, doing, removal_of_triggers(names))
        await retry_locked(lambda: _execute(source, doing, removal_of_objects(names)), DEFAULT_POLICY.source, _IS_BUSY)
    except MissingPrivilegeError as error:
        raise MissingPrivilegeError(error.fact, "let its owner run the SQL of 'pgsluice ddl sql --remove'") from None
    return True


async def note_table(source: Source, names: GroupNames, table: TablePattern) -> None:
    """Has the capture describe a table now. Raises UsageError when there is no such table."""
    assert table.schema is not None
    name = sql.Identifier(table.schema.name, table.name.name).as_string()
    if await find_capture(source, names) is None:
        raise TerminalError(f"the capture of schema changes of group {names.group} is not installed", ADMINISTRATORS_SQL)
    await check_owners(source, names)
    call = sql.SQL("SELECT {}({}::regclass)").format(sql.SQL(qualified(names, "note")), sql.Literal(name))
    await source.execute(f"noting the definition of {name}", call)


async def _execute(source: Source, doing: str, statements: Iterable[str]) -> None:
    """Executes all statements, or none. Waits for other groups that do the same; no other session waits for that."""
    async with source.transaction(doing):
        await source.execute(doing, sql.Composed([_ALONE]))
        await source.execute(doing, sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT_MS)))
        for statement in statements:
            await source.execute(doing, sql.Composed([sql.SQL(statement)]))
