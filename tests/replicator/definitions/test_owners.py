"""No role gains rights by the capture: an ordinary owner of the database tries to, and its schema ``pgsluice`` is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgsluice.replicator.definitions.capture import install_capture, note_table
from pgsluice.replicator.definitions.installation import Installation, removal_script
from pgsluice.replicator.definitions.owners import owner_errors
from pgsluice.replicator.definitions.tracking import track_definitions
from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern
from tests.replicator.definitions.captured import at_source, install
from tests.replicator.definitions.conftest import on_both
from tests.servers import Database

PATTERNS = [TablePattern.parse("public.*")]
GAIN = "ALTER ROLE {app} SUPERUSER"


class Owner:
    """An ordinary role that owns the database."""

    def __init__(self, database: Database, name: str) -> None:
        self.name = name
        self._database = database

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        dsn = self._database.server.dsn(self._database.dbname)
        with psycopg.connect(dsn, user=self.name, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def is_superuser(self) -> bool:
        query = "SELECT rolsuper FROM pg_roles WHERE rolname = %s"
        return self._database.execute(query, [self.name]) == [(True,)]


@pytest.fixture
def app(source: Database) -> Iterator[Owner]:
    name = f"app_{uuid.uuid4().hex[:8]}"
    source.execute(f"CREATE ROLE {name} LOGIN; ALTER DATABASE {source.dbname} OWNER TO {name}")
    owner = Owner(source, name)
    owner.execute("CREATE TABLE t (a int PRIMARY KEY)")
    yield owner
    source.execute(f"ALTER DATABASE {source.dbname} OWNER TO {source.server.user}; ALTER ROLE {name} NOSUPERUSER")
    source.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def errors_of(source: Database, names: GroupNames) -> str:
    """What a start with the superuser refuses."""

    async def track(connection: Source) -> str:
        return await track_definitions(connection, names, PATTERNS, source.server.user, [], Pauses(0.1, 1.0))

    try:
        at_source(source.settings, track)
    except TerminalError as refusal:
        return str(refusal)
    return ""


def statements_of(source: Database, names: GroupNames) -> list[str]:
    errors = at_source(source.settings, lambda connection: owner_errors(connection, names))
    return [statement for error in errors for statement in error.statements]


@on_both
def test_a_schema_of_the_databases_owner_is_refused_so_he_does_not_become_superuser(
    source: Database, names: GroupNames, app: Owner
) -> None:
    app.execute("CREATE SCHEMA pgsluice")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"schema pgsluice belongs to {app.name}"):
        source.execute(Installation(names, PATTERNS, source.server.user).script())
    assert source.execute("SELECT FROM pg_event_trigger") == []
    assert f"schema pgsluice of the source belongs to '{app.name}'" in errors_of(source, names)


def test_a_capture_that_the_databases_owner_made_is_not_touched_so_he_does_not_become_superuser(
    source: Database, names: GroupNames, app: Owner
) -> None:
    """His trigger would run as whoever writes into the table."""
    app.execute(Installation(names, [], source.server.user, has_triggers=False).script())
    app.execute(
        f"CREATE FUNCTION gain() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {GAIN.format(app=app.name)}; RETURN NULL; END $$;"
        f"CREATE TRIGGER gain BEFORE INSERT ON pgsluice.{names.in_source('pattern')} EXECUTE FUNCTION gain()"
    )
    refusal = errors_of(source, names)
    assert not app.is_superuser
    assert f"function pgsluice.{names.in_source('ddl')}() belongs to '{app.name}'" in refusal
    assert "pgsluice ddl sql --remove" in refusal


TRIES = [
    "DROP SCHEMA pgsluice CASCADE",
    "ALTER SCHEMA pgsluice OWNER TO {app}",
    "ALTER SCHEMA pgsluice RENAME TO mine",
    "DROP FUNCTION pgsluice.{emit}(text, text, jsonb)",
    "CREATE OR REPLACE FUNCTION pgsluice.{emit}(kind text, tag text, facts jsonb) RETURNS void LANGUAGE sql AS ''",
    "CREATE FUNCTION pgsluice.{emit}(kind text, tag text, facts json) RETURNS void LANGUAGE sql AS ''",
    "ALTER FUNCTION pgsluice.{ddl}() RESET ALL",
    "CREATE TRIGGER gain BEFORE INSERT ON pgsluice.{pattern} EXECUTE FUNCTION gain()",
    "DROP TABLE pgsluice.{pattern}",
    "SELECT token FROM pgsluice.{token}",
    "SELECT pgsluice.{emit}('table', 'note', '{{}}')",
    "CREATE EVENT TRIGGER gain ON ddl_command_end EXECUTE FUNCTION pgsluice.{ddl}()",
]


def test_the_databases_owner_exchanges_nothing_of_what_a_superuser_installed(
    source: Database, names: GroupNames, app: Owner
) -> None:
    """Default privileges, which many have, do not give it to him either."""
    source.execute(f"CREATE PUBLICATION {names.publication} FOR TABLE t")
    for kind in ("SCHEMAS", "TABLES"):
        source.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO {app.name}, PUBLIC")
    source.execute(Installation(names, PATTERNS, source.server.user).script())
    app.execute(f"CREATE FUNCTION gain() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {GAIN.format(app=app.name)}; END $$")
    nouns = {noun: names.in_source(noun) for noun in ("emit", "ddl", "pattern", "token")}
    for statement in TRIES:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute(statement.format(app=app.name, **nouns))
    assert errors_of(source, names) == ""
    app.execute("ALTER TABLE t ADD b int")
    assert not app.is_superuser


def test_a_right_to_create_beside_the_capture_is_refused_until_it_is_revoked(
    source: Database, names: GroupNames, app: Owner
) -> None:
    install(source, names)
    for role, who in ((app.name, f"'{app.name}'"), ("PUBLIC", "every role")):
        source.execute(f"GRANT CREATE ON SCHEMA pgsluice TO {role}")
        assert f"{who} may create in schema pgsluice" in errors_of(source, names)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may create in schema pgsluice"):
            source.execute(Installation(names, PATTERNS, source.server.user).script())
        for statement in statements_of(source, names):
            source.execute(statement)
        assert errors_of(source, names) == ""


def test_an_installation_in_a_schema_of_another_role_is_cured_as_the_error_says(
    source: Database, names: GroupNames, app: Owner
) -> None:
    install(source, names)
    source.execute(f"ALTER SCHEMA pgsluice OWNER TO {app.name}")
    emit = f"pgsluice.{names.in_source('emit')}"
    app.execute(f"DROP FUNCTION {emit}; CREATE FUNCTION {emit}(a text, b text, c jsonb) RETURNS void LANGUAGE sql AS ''")
    refusal = errors_of(source, names)
    assert f"schema pgsluice of the source belongs to '{app.name}'" in refusal
    assert f"function {emit}(text,text,jsonb) belongs to '{app.name}'" in refusal
    for statement in statements_of(source, names):
        source.execute(statement)
    assert "schema" not in errors_of(source, names)
    source.execute(removal_script(names))
    install(source, names)
    assert errors_of(source, names) == ""


def test_what_another_plain_role_installed_is_trusted_by_a_member_of_that_role_only(
    source: Database, names: GroupNames, app: Owner
) -> None:
    reader = f"{app.name}_reader"
    source.execute(f"CREATE ROLE {reader} LOGIN")
    installation = Installation(names, PATTERNS, reader, has_triggers=False)
    app.execute(installation.script())

    async def start_and_note(connection: Source) -> str:
        token = await install_capture(connection, installation)
        await note_table(connection, names, TablePattern.parse("public.t"))
        return token

    settings = replace(source.settings, user=reader)
    try:
        with pytest.raises(TerminalError, match=f"belongs to '{app.name}'"):
            at_source(settings, start_and_note)
        source.execute(f"GRANT {app.name} TO {reader}")
        assert at_source(settings, start_and_note)
    finally:
        source.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}")
