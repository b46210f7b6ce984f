"""The objects of a group's capture at its source, as statements: to create it, to remove it, and as a script for psql.

All statements can be repeated: existing objects are left, or replaced by the same. Objects of another role are refused,
because the owner of a function that an event trigger calls acts with the rights of every role that alters anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.replicator.definitions import description_sql, owner_sql, selection_sql, trigger_sql
from pgsluice.shared.errors import UsageError
from pgsluice.shared.postgres.session_settings import SESSION_SETTINGS
from pgsluice.shared.wire.definition import NOTE_TAG
from pgsluice.shared.wire.definition import VERSION as MESSAGE_VERSION
from pgsluice.shared.wire.names import PAD_PREFIX, SOURCE_SCHEMA, GroupNames
from pgsluice.shared.wire.table import TablePattern

VERSION = 3
"""Version of the functions. Another one is installed over existing ones."""

LOCK_TIMEOUT_MS = 500  # the limit for which sessions that alter tables wait for an installation

_EVENTS = {"ddl": "ddl_command_end", "drop": "sql_drop", "rewrite": "table_rewrite"}

_TAGS = (
    "CREATE TABLE",
    "CREATE TABLE AS",
    "SELECT INTO",
    "CREATE SCHEMA",  # it may make tables in the same statement
    "ALTER TABLE",
    "ALTER INDEX",  # it renames tables too
    "ALTER SCHEMA",
    "ALTER TYPE",
    "ALTER DOMAIN",
    "ALTER EXTENSION",
    "CREATE PUBLICATION",
    "ALTER PUBLICATION",
)

_SHAPE = ("datestyle", "intervalstyle", "timezone", "extra_float_digits", "bytea_output", "lc_monetary", "array_nulls")
"""Session settings that shape the text of a value."""

_TABLES = ("token", "pattern")

_FUNCTIONS = {
    "select(oid[])": ("Which tables a command concerns, and whether the publication has them.", selection_sql.SELECT),
    "users(oid)": ("Which tables use a type.", selection_sql.USERS),
    "name(oid)": ("Oid, schema and name of a table.", description_sql.NAME),
    "columns(oid, oid[], boolean)": ("The columns of a table, for its description.", description_sql.COLUMNS),
    "partitions(oid[])": ("Its partitions.", description_sql.PARTITIONS),
    "describe(oid, boolean, oid[])": ("The description of a table.", description_sql.DESCRIBE),
    "type(oid)": ("The description of a type.", description_sql.TYPE),
    "emit(text, text, jsonb)": ("Writes one message into the write-ahead log, signed.", trigger_sql.EMIT),
    "tell(text, oid[], oid[])": ("Describes tables and types, as far as the group has or may want them.", trigger_sql.TELL),
    "commands(text)": ("After a command that altered tables or types.", trigger_sql.COMMANDS),
    "publish(text)": ("After a command that altered the publication.", trigger_sql.PUBLISH),
    "unpublish(text)": ("After tables were taken out of the publication.", trigger_sql.UNPUBLISH),
    "drops(text)": ("After a command that dropped something.", trigger_sql.DROPS),
    "rewrites(text)": ("Before a table is rewritten.", trigger_sql.REWRITES),
    "ddl()": ("Event triggers call it. A failure in it is a warning, and does not fail the statement.", trigger_sql.DDL),
    "note(regclass)": ("For migrations where event triggers cannot be had: called with the table's name.", trigger_sql.NOTE),
}
"""Functions by signature, each after the ones that it calls: purpose and text."""

_EARLIER = ("describe(oid, boolean)",)
"""Signatures of functions that only earlier versions of the capture have."""


@dataclass(frozen=True, slots=True)
class InstallationStep:
    """One statement, and what a reader of the script should know of it."""

    comment: str
    statement: str


@dataclass(frozen=True, slots=True)
class Installation:
    """The capture of one group. ``role`` is the group's login role, which need not be the one that installs;
    ``patterns`` are of the tables that the group wants, with their schemas. Without event triggers only noted changes
    are sent."""

    names: GroupNames
    patterns: Sequence[TablePattern]
    role: str
    has_triggers: bool = True

    def __post_init__(self) -> None:
        if "$pgsluice$" in self.names.publication:
            raise UsageError(f"publication {self.names.publication!r} has a name that cannot be quoted", "rename it")

    @property
    def comment(self) -> str:
        """Comment of the function ``ddl``: its group, and the installed version."""
        kind = "capture" if self.has_triggers else "notes"
        return f"{group_comment(self.names)}, {kind} {VERSION} of publication {self.names.publication}"

    def steps(self) -> Iterator[InstallationStep]:
        """Yields the steps, for one transaction."""
        yield InstallationStep(
            "The following statements call no function that they replace.", ";\n".join(removal_of_triggers(self.names))
        )
        yield InstallationStep("The schema of pgsluice's own objects.", self._formatted(owner_sql.HOME))
        yield InstallationStep(
            "No other role can replace its contents, and the capture uses no object of another role.",
            owner_sql.GUARD.format(others=others_query(self.names, owner_sql.INSTALLING)),
        )
        yield InstallationStep(
            "The secret that signs messages. Only the owner and the group's role read it; the row is written while the table is"
            "\n-- not logged, so that no publication ever sends it.",
            self._formatted(_SIGNATURE),
        )
        yield InstallationStep(
            "The tables that the group wants, as patterns of LIKE. Not logged, so never published: the replicator fills it when"
            "\n-- it starts. Dropped and created again, so without triggers.",
            self._formatted(
                "DROP TABLE IF EXISTS {pattern};\n"
                "CREATE UNLOGGED TABLE {pattern} (schema_like text NOT NULL, table_like text NOT NULL)"
            ),
        )
        yield InstallationStep("Default privileges may have given these tables to others.", self._formatted(_PRIVATE))
        yield from self.pattern_steps()
        earlier = [f"DROP FUNCTION IF EXISTS {signature}" for signature in _signatures(self.names, _EARLIER)]
        yield InstallationStep("Functions of earlier versions, which this version replaces.", ";\n".join(earlier))
        for meaning, text in _FUNCTIONS.values():
            yield InstallationStep(meaning, self._formatted(text).strip())
        yield InstallationStep("Only the owner can call them,", ";\n".join(self._revocations()))
        yield InstallationStep("except for those that the group's role needs.", ";\n".join(self._grants()))
        for noun, event in _EVENTS.items() if self.has_triggers else ():
            yield InstallationStep(
                f"Calls the function at {event}, for replicated sessions too.", self._event_trigger(noun, event)
            )
        function = self._of("ddl")
        yield InstallationStep("Which version this is.", f"COMMENT ON FUNCTION {function}() IS {_literal(self.comment)}")

    def pattern_steps(self) -> Iterator[InstallationStep]:
        """Yields the steps that replace the stored patterns with the group's. The group's role executes them too, at
        each start."""
        rows = ", ".join(f"({_literal(schema)}, {_literal(table)})" for schema, table in self.like_pairs)
        pattern = self._of("pattern")
        yield InstallationStep("", f"DELETE FROM {pattern}")
        if rows:
            yield InstallationStep("", f"INSERT INTO {pattern} VALUES {rows}")

    @property
    def like_pairs(self) -> list[tuple[str, str]]:
        return sorted({(pattern.schema.like, pattern.name.like) for pattern in self.patterns if pattern.schema is not None})

    def script(self) -> str:
        """Returns a script for an administrator, to be run by psql."""
        head = _HEAD.format(group=self.names.group, role=repr(self.role), publication=repr(self.names.publication))
        body = [(f"-- {step.comment}\n" if step.comment else "") + f"{step.statement};\n" for step in self.steps()]
        return "\n".join([head, *body, "COMMIT;\n"])

    def statements(self) -> list[str]:
        """Returns the statements of the script, in one transaction, without comments: each may be put on one line."""
        texts = [step.statement for step in self.steps()]
        bare = ["\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")) for text in texts]
        return [*_SETTINGS, *bare, "COMMIT"]

    def _of(self, noun: str) -> str:
        return qualified(self.names, noun)

    def _formatted(self, text: str) -> str:
        nouns = [*_TABLES, *map(_noun, _FUNCTIONS)]
        return text.format(
            **{noun: self._of(noun) for noun in nouns},
            schema=SOURCE_SCHEMA,
            group=self.names.group,
            publication=_literal(self.names.publication),
            prefix=self.names.definitions_prefix,
            pad=PAD_PREFIX,
            version=MESSAGE_VERSION,
            note_tag=NOTE_TAG,
            settings=_function_settings(),
        )

    def _revocations(self) -> Iterator[str]:
        for signature in _signatures(self.names, _FUNCTIONS):
            yield f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC"

    def _grants(self) -> Iterator[str]:
        role = sql.Identifier(self.role).as_string()
        yield f"GRANT USAGE ON SCHEMA {SOURCE_SCHEMA} TO {role}"
        yield f"GRANT SELECT ON {self._of('token')} TO {role}"
        yield f"GRANT SELECT, INSERT, DELETE ON {self._of('pattern')} TO {role}"
        yield f"GRANT EXECUTE ON FUNCTION {self._of('note')}(regclass) TO {role}"

    def _event_trigger(self, noun: str, event: str) -> str:
        name = self.names.event_trigger(noun)
        tags = f"    WHEN TAG IN ({', '.join(map(_literal, _TAGS))})\n" if noun == "ddl" else ""
        return (
            f"CREATE EVENT TRIGGER {name} ON {event}\n{tags}    EXECUTE FUNCTION {self._of('ddl')}();\n"
            f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS"
        )


def group_comment(names: GroupNames) -> str:
    """Returns the begin of the comment of a group's function. ``a-b`` and ``a_b`` have the same function."""
    return f"pgsluice group {names.group}"


def qualified(names: GroupNames, noun: str) -> str:
    return f"{SOURCE_SCHEMA}.{names.in_source(noun)}"


def _signatures(names: GroupNames, signatures: Iterable[str]) -> list[str]:
    """Returns the signatures for DROP FUNCTION."""
    return [f"{qualified(names, _noun(signature))}{signature[len(_noun(signature)) :]}" for signature in signatures]


def function_names(names: GroupNames) -> list[str]:
    return [names.in_source(_noun(signature)) for signature in _FUNCTIONS]


def table_names(names: GroupNames) -> list[str]:
    return [names.in_source(noun) for noun in _TABLES]


def event_trigger_names(names: GroupNames) -> list[str]:
    return [names.event_trigger(noun) for noun in _EVENTS]


def others_query(names: GroupNames, installer: str) -> str:
    """Returns the query for the roles other than the ``installer`` that own a part of the capture (``owner_sql``)."""
    return owner_sql.OTHERS.format(
        schema=SOURCE_SCHEMA,
        installer=installer.format(ddl=names.in_source("ddl")),
        functions=", ".join(map(_literal, function_names(names))),
        tables=", ".join(map(_literal, table_names(names))),
        triggers=", ".join(map(_literal, event_trigger_names(names))),
    )


def removal_of_triggers(names: GroupNames) -> list[str]:
    """Returns statements to commit before the rest is removed: from then on no statement calls the removed functions."""
    return [f"DROP EVENT TRIGGER IF EXISTS {name}" for name in event_trigger_names(names)]


def removal_of_objects(names: GroupNames) -> list[str]:
    """Returns statements that drop each function after its callers; the schema when nothing else is in it."""
    functions = [f"DROP FUNCTION IF EXISTS {signature}" for signature in reversed(_signatures(names, (*_FUNCTIONS, *_EARLIER)))]
    tables = [f"DROP TABLE IF EXISTS {qualified(names, noun)}" for noun in _TABLES]
    return [*functions, *tables, _EMPTY_SCHEMA.format(schema=SOURCE_SCHEMA)]


def removal_script(names: GroupNames) -> str:
    """Returns a script for an administrator, to be run by psql."""
    head = f"-- Removes the capture of schema changes of the group {names.group}.\n\n{_BEGIN}"
    statements = [*removal_of_triggers(names), *removal_of_objects(names)]
    return "\n".join([head, *(f"{statement};" for statement in statements), "\nCOMMIT;\n"])


def _noun(signature: str) -> str:
    return signature.partition("(")[0]


def _literal(text: str) -> str:
    return sql.Literal(text).as_string()


def _function_settings() -> str:
    settings = {
        "search_path": "pg_catalog, pg_temp",
        "lock_timeout": "'100ms'",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
    }
    settings |= {name: _literal(SESSION_SETTINGS[name]) for name in _SHAPE}
    return "\n    ".join(f"SET {name} = {value}" for name, value in settings.items())


_SETTINGS = (
    "BEGIN",
    f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}",
    "SET LOCAL search_path = pg_catalog, pg_temp",
    "SET LOCAL client_min_messages = warning",
)
_BEGIN = "".join(f"{statement};\n" for statement in _SETTINGS)

_HEAD = f"""\
-- Capture of schema changes for the group {{group}}: the WAL gets a message for each altered table of {{publication}}.
-- Run it in the source database as a role that can create event triggers, and again after each upgrade of pgsluice.
-- The group connects as {{role}}; the grants below are all that this role needs.

{_BEGIN}"""

_SIGNATURE = """\
DO $pgsluice$
BEGIN
    IF to_regclass('{token}') IS NULL THEN
        CREATE UNLOGGED TABLE {token} (token text NOT NULL);
        INSERT INTO {token}
        SELECT replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
        ALTER TABLE {token} SET LOGGED;
    END IF;
END
$pgsluice$"""

_PRIVATE = """\
DO $pgsluice$
DECLARE
    other record;
BEGIN
    FOR other IN SELECT DISTINCT c.oid::regclass AS name, a.grantee::regrole AS role FROM pg_class c, aclexplode(c.relacl) a
                  WHERE c.oid IN ('{token}'::regclass, '{pattern}'::regclass) AND a.grantee NOT IN (c.relowner, 0) LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', other.name, other.role);
    END LOOP;
    REVOKE ALL ON {token}, {pattern} FROM PUBLIC;
END
$pgsluice$"""

_EMPTY_SCHEMA = """\
DO $pgsluice$
BEGIN
    IF EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = '{schema}' AND pg_has_role(n.nspowner, 'USAGE')
                  AND NOT EXISTS (SELECT FROM pg_depend d
                                   WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid)) THEN
        DROP SCHEMA {schema};
    END IF;
END
$pgsluice$"""
