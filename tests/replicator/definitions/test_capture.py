"""The capture is installed once, brought up to date, found whole or not, and removed without a trace."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgsluice.replicator.definitions.capture import find_capture, install_capture, note_table, remove_capture
from pgsluice.replicator.definitions.installation import VERSION, Installation, removal_script
from pgsluice.replicator.definitions.tracking import track_definitions
from pgsluice.replicator.source.source import Source
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import MissingPrivilegeError, TransientError, UsageError
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern
from tests.replicator.definitions.captured import Stream, at_source, install
from tests.replicator.definitions.conftest import on_both
from tests.servers import Database, PostgresServer
from tests.waiting import wait_until_async

DIGEST = "dfc1adfce959ba50b1f920f2eb65e8c02abbdaf7419a6dbc6d01353f4e828fa7"

PATTERNS = [TablePattern.parse("public.*"), TablePattern.parse("sales.order_*")]

Catalog = dict[str, list[tuple[Any, ...]]]

OBJECTS = (
    "SELECT nspname, nspowner::regrole::text, nspacl::text FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp' ORDER BY 1",
    "SELECT oid, relname, relacl::text FROM pg_class ORDER BY 1",
    "SELECT oid, proname FROM pg_proc ORDER BY 1",
    "SELECT oid, typname FROM pg_type ORDER BY 1",
    "SELECT evtname FROM pg_event_trigger ORDER BY 1",
    "SELECT objoid, description FROM pg_description ORDER BY 1, 2",
    "SELECT classid, objid, refclassid, refobjid FROM pg_depend ORDER BY 1, 2, 3, 4",
    "SELECT classid, objid, refclassid, refobjid FROM pg_shdepend WHERE dbid <> 0 ORDER BY 1, 2, 3, 4",
)


@pytest.fixture
def role(source: Database) -> Iterator[str]:
    """What a group connects as; its name needs quotes."""
    name = f"Plain {uuid.uuid4().hex[:8]}"
    source.execute(f'CREATE ROLE "{name}" LOGIN REPLICATION')
    yield name
    source.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def catalog(database: Database) -> Catalog:
    """Everything that an installation could leave behind."""
    return {query: database.execute(query) for query in OBJECTS}


def remove(settings: PostgresSettings, names: GroupNames) -> bool:
    return at_source(settings, lambda source: remove_capture(source, names))


def install_as(source: Database, role: str, names: GroupNames, *, has_triggers: bool = True) -> str:
    settings = replace(source.settings, user=role)
    installation = Installation(names, PATTERNS, role, has_triggers)
    return at_source(settings, lambda connection: install_capture(connection, installation))


def is_whole(source: Database, names: GroupNames) -> bool:
    found = at_source(source.settings, lambda connection: find_capture(connection, names))
    return found is not None and found.is_whole(Installation(names, [], ""))


def patterns_of(source: Database, names: GroupNames) -> list[tuple[Any, ...]]:
    return source.execute(f"SELECT * FROM pgsluice.{names.in_source('pattern')} ORDER BY 1, 2")


def test_a_changed_statement_is_a_new_version() -> None:
    """Otherwise what is installed would stay as it is. Raise VERSION, and write the new digest here."""
    lines = Installation(GroupNames("orders"), PATTERNS, "app").script().splitlines()
    statements = "\n".join(line for line in lines if not line.startswith("--"))
    assert (VERSION, hashlib.sha256(statements.encode()).hexdigest()) == (3, DIGEST)


def test_installing_again_changes_nothing(source: Database, names: GroupNames) -> None:
    token = install(source, names, "public.*", "sales.order_*")
    before = catalog(source)
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert install(source, names, "public.*", "sales.order_*") == token
    assert catalog(source) == before
    assert patterns_of(source, names) == [("public", "%"), ("sales", "order\\_%")]


def test_groups_that_begin_and_end_together_do_not_fail_each_other(source: Database, names: GroupNames) -> None:
    """They share the schema, which the first one makes and the last one takes away."""
    groups = [GroupNames(f"{names.group}-{n}") for n in range(4)]

    async def come_and_go(group: GroupNames) -> None:
        connection = await Source.connect(source.settings)
        try:
            for _ in range(10):
                await install_capture(connection, Installation(group, PATTERNS, source.settings.user))
                assert await remove_capture(connection, group)
        finally:
            await connection.close()

    async def all_at_once() -> None:
        await asyncio.gather(*map(come_and_go, groups))

    before = catalog(source)
    asyncio.run(all_at_once())
    assert catalog(source) == before


def test_other_tables_are_wanted_from_the_next_start_on(source: Database, names: GroupNames) -> None:
    install(source, names, "public.*")
    before = catalog(source)
    install(source, names, "sales.*", '"a_b".x')
    assert patterns_of(source, names) == [("a\\_b", "x"), ("sales", "%")]
    install(source, names)
    assert patterns_of(source, names) == []
    assert catalog(source) == before


DAMAGES = [
    "COMMENT ON FUNCTION pgsluice.{ddl}() IS 'pgsluice group {group}, capture 0 of publication x'",
    "ALTER EVENT TRIGGER {slot}_drop DISABLE",
    "ALTER EVENT TRIGGER {slot}_ddl ENABLE",
    "DROP EVENT TRIGGER {slot}_rewrite",
    "DROP FUNCTION pgsluice.{describe}(oid, boolean, oid[])",
    "CREATE FUNCTION pgsluice.{describe}(oid, boolean) RETURNS int LANGUAGE sql RETURN 1",
    "DROP TABLE pgsluice.{pattern}",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_older_or_not_whole_is_made_anew_with_the_same_token(stream: Stream, names: GroupNames, damage: str) -> None:
    token = install(stream.database, names)
    nouns = {noun: names.in_source(noun) for noun in ("ddl", "describe", "pattern")}
    stream.database.execute(damage.format(**nouns, slot=names.slot, group=names.group))
    assert install(stream.database, names) == token
    assert is_whole(stream.database, names)
    assert stream.after("ALTER TABLE t ADD c int", "ALTER TABLE t ALTER a TYPE bigint", "DROP TABLE t") == [
        "table t(*1:a:integer!, 2:b:text, 3:c:integer)",
        "rewrite t 4",
        "table t(*1:a:bigint!, 2:b:text, 3:c:integer) rewritten",
        "gone t",
    ]


def test_an_older_function_is_replaced(stream: Stream, names: GroupNames) -> None:
    ddl = f"pgsluice.{names.in_source('ddl')}()"
    stream.database.execute(
        f"CREATE OR REPLACE FUNCTION {ddl} RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$;"
        f"COMMENT ON FUNCTION {ddl} IS 'pgsluice group {names.group}, capture 0 of publication {names.publication}'"
    )
    assert stream.after("ALTER TABLE t ADD c int") == []
    install(stream.database, names)
    assert stream.after("ALTER TABLE t ADD d int") == ["table t(*1:a:integer!, 2:b:text, 3:c:integer, 4:d:integer)"]


@on_both
def test_removing_leaves_nothing(source: Database, names: GroupNames) -> None:
    before = catalog(source)
    assert not remove(source.settings, names)
    install(source, names, "public.*")
    assert remove(source.settings, names)
    assert catalog(source) == before
    assert not remove(source.settings, names)


def test_what_is_left_of_a_removal_is_removed(source: Database, names: GroupNames) -> None:
    before = catalog(source)
    install(source, names)
    source.execute(f"DROP FUNCTION pgsluice.{names.in_source('ddl')}() CASCADE")
    assert remove(source.settings, names)
    assert catalog(source) == before


def test_another_group_stays_as_it_is_and_goes_on(stream: Stream, names: GroupNames) -> None:
    other = GroupNames(names.group + "-2")
    install(stream.database, other)
    assert remove(stream.database.settings, other)
    assert is_whole(stream.database, names)
    assert stream.after("ALTER TABLE t ADD c int") == ["table t(*1:a:integer!, 2:b:text, 3:c:integer)"]


def test_what_else_is_in_the_schema_stays(source: Database, names: GroupNames) -> None:
    source.execute("CREATE SCHEMA pgsluice CREATE TABLE applied (a int)")
    source.execute(f"GRANT USAGE ON SCHEMA pgsluice TO {source.server.user}")
    before = catalog(source)
    install(source, names)
    assert remove(source.settings, names)
    assert catalog(source) == before


def test_the_capture_of_a_group_of_another_spelling_is_not_touched(source: Database, names: GroupNames) -> None:
    token = install(source, names)
    alike = GroupNames(names.group.replace("-", "_"))
    for act in (lambda: install(source, alike), lambda: remove(source.settings, alike)):
        with pytest.raises(UsageError, match=f"is that of another 'group {names.group}'"):
            act()
    assert install(source, names) == token


def test_a_removal_waits_for_a_transaction_that_altered_something_but_not_for_long(stream: Stream, names: GroupNames) -> None:
    async def remove_meanwhile() -> None:
        source = await Source.connect(stream.database.settings)
        with stream.database.connect(autocommit=False) as application:
            application.execute("ALTER TABLE t ADD c int")
            removing = asyncio.create_task(remove_capture(source, names))

            async def are_triggers_gone() -> bool:
                return stream.database.execute("SELECT FROM pg_event_trigger") == []

            await wait_until_async(are_triggers_gone, what="the end of the event triggers")
            stream.database.execute("SET statement_timeout = '5s'; CREATE TABLE other (a int); ALTER TABLE other ADD b int")
            assert not removing.done()
            application.commit()
        assert await removing
        await source.close()

    asyncio.run(remove_meanwhile())
    assert stream.database.execute("SELECT to_regnamespace('pgsluice') IS NULL") == [(True,)]


def test_a_removal_gives_up_when_the_transaction_does_not_end(
    stream: Stream, names: GroupNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.replicator.source.source.LOCK_ATTEMPTS", 1)
    with stream.database.connect(autocommit=False) as application:
        application.execute("ALTER TABLE t ADD c int")
        with pytest.raises(TransientError, match="lock timeout"):
            remove(stream.database.settings, names)
    assert remove(stream.database.settings, names)


@on_both
def test_a_role_that_may_not_install_it_is_told_what_an_administrator_can_do(
    source: Database, names: GroupNames, role: str
) -> None:
    source.execute(f'GRANT CREATE ON DATABASE {source.dbname} TO "{role}"')
    before = catalog(source)
    with pytest.raises(MissingPrivilegeError) as refusal:
        install_as(source, role, names)
    assert "permission denied to create event trigger" in refusal.value.fact
    assert "'pgsluice ddl sql'" in refusal.value.remedy
    assert catalog(source) == before


@on_both
def test_a_plain_role_works_with_what_an_administrator_installed(source: Database, names: GroupNames, role: str) -> None:
    source.execute(f"CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION {names.publication} FOR TABLE t")
    script = Installation(names, [], role).script()
    for _ in range(2):
        source.execute(script)
    stream = Stream.begin(source, names)
    token = install_as(source, role, names)
    assert patterns_of(source, names) == [("public", "%"), ("sales", "order\\_%")]
    settings = replace(source.settings, user=role)
    at_source(settings, lambda connection: note_table(connection, names, TablePattern.parse("public.t")))
    assert stream.after("CREATE TABLE n (a int)") == ["table t(*1:a:integer!)", "table n(1:a:integer) unpublished"]
    assert {*stream.tokens} == {token}
    assert [event.tag for event in stream.events] == ["note", "CREATE TABLE"]


@on_both
def test_what_a_plain_role_may_not_remove_an_administrator_removes(source: Database, names: GroupNames, role: str) -> None:
    before = catalog(source)
    source.execute(Installation(names, PATTERNS, role).script())
    with pytest.raises(MissingPrivilegeError, match=r"must be owner of event trigger.*'pgsluice ddl sql --remove'"):
        remove(replace(source.settings, user=role), names)
    for _ in range(2):
        source.execute(removal_script(names))
    assert catalog(source) == before


@on_both
def test_without_event_triggers_a_plain_role_installs_what_notes_a_table(source: Database, names: GroupNames, role: str) -> None:
    source.execute(f"CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION {names.publication} FOR TABLE t")
    source.execute(f'GRANT CREATE ON DATABASE {source.dbname} TO "{role}"')
    stream = Stream.begin(source, names)
    token = install_as(source, role, names, has_triggers=False)
    settings = replace(source.settings, user=role)
    assert stream.after("ALTER TABLE t ADD b int") == []
    at_source(settings, lambda connection: note_table(connection, names, TablePattern.parse("public.t")))
    assert stream.read() == ["table t(*1:a:integer!, 2:b:integer)"]
    assert stream.tokens == [token]
    with pytest.raises(MissingPrivilegeError):
        install_as(source, role, names)
    assert install_as(source, role, names, has_triggers=False) == token
    assert remove(settings, names)


def test_default_privileges_give_the_token_to_nobody(source: Database, names: GroupNames, role: str) -> None:
    source.execute(f'ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO "{role}", PUBLIC; GRANT USAGE ON SCHEMA public TO "{role}"')
    install(source, names)
    source.execute(f'GRANT USAGE ON SCHEMA pgsluice TO "{role}"')
    with (
        psycopg.connect(source.server.dsn(source.dbname), user=role) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="token"),
    ):
        connection.execute(f"SELECT token FROM pgsluice.{names.in_source('token')}")


def test_a_publication_of_all_tables_sends_neither_the_token_nor_the_patterns(source: Database, names: GroupNames) -> None:
    other = GroupNames(names.group + "-all")
    source.execute(f"CREATE PUBLICATION {other.publication} FOR ALL TABLES")
    stream = Stream.begin(source, other)
    token = install(source, names, "public.*")
    install(source, names, "sales.*")
    install(source, other, "public.*")
    assert stream.read() == []
    assert install(source, names) == token


def test_after_a_crash_of_the_server_the_token_is_there_and_the_patterns_come_with_the_next_start(names: GroupNames) -> None:
    with PostgresServer() as server:
        database = server.create_database("shop")
        token = install(database, names, "public.*")
        server.kill()
        server.start()
        assert patterns_of(database, names) == []
        assert install(database, names, "public.*") == token
        assert patterns_of(database, names) == [("public", "%")]


def test_a_publication_of_any_name_is_captured(source: Database, group: str) -> None:
    names = GroupNames(group, 'Shop\'s \\ "changes"')
    quoted = '"Shop\'s \\ ""changes"""'
    source.execute(f"CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION {quoted} FOR TABLE t")
    install(source, names)
    with source.connect() as connection:
        connection.execute("SET standard_conforming_strings = off; ALTER TABLE t ADD b int")
    event_trigger: Callable[[str], str] = names.event_trigger
    [(found,)] = source.execute("SELECT evtname FROM pg_event_trigger WHERE evtname = %s", [event_trigger("ddl")])
    assert found == names.slot + "_ddl"
    source.execute("SELECT pg_create_logical_replication_slot('captured', 'pgoutput')")
    assert Stream(source, GroupNames(group, quoted[1:-1])).after("ALTER TABLE t ADD c int") == [
        "table t(*1:a:integer!, 2:b:integer, 3:c:integer)"
    ]
    with pytest.raises(UsageError, match="cannot be quoted"):
        Installation(GroupNames(group, "$pgsluice$"), [], "app")


def test_published_tables_are_described_but_for_those_that_were(stream: Stream, names: GroupNames) -> None:
    stream.after(f"CREATE TABLE u (a int PRIMARY KEY); CREATE TABLE v (a int); ALTER PUBLICATION {names.publication} ADD TABLE u")
    [(described,)] = stream.database.execute("SELECT 't'::regclass::oid::bigint")

    def track(source: Source) -> Awaitable[str]:
        return track_definitions(source, names, PATTERNS, stream.database.server.user, [described], Pauses(0.1, 1.0))

    assert at_source(stream.database.settings, track)
    assert stream.read() == ["table u(*1:a:integer!)"]


def test_a_note_tells_of_the_table_and_of_the_types_that_it_uses(stream: Stream, names: GroupNames) -> None:
    note = f"SELECT pgsluice.{names.in_source('note')}"
    stream.after(
        "CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN moods AS mood[]; CREATE TABLE lane (a mood);"
        "CREATE TYPE pair AS (a int, b moods, r lane); CREATE TYPE span AS RANGE (subtype = text);"
        "CREATE TABLE other (a int, p pair[], s span, n int4range)"
    )
    assert stream.after(f"{note}('other')") == [
        "type mood e[0:sad]",
        "type moods dpublic.mood[]{}",
        "type pair c(1:a:integer,2:b:public.moods,3:r:public.lane)",
        "type span r",
        "table other(1:a:integer, 2:p:public.pair[], 3:s:public.span, 4:n:int4range) unpublished",
    ]
    assert stream.after(f"INSERT INTO t VALUES (1); {note}('t'); INSERT INTO t VALUES (2)") == [
        "R t(*a,b)",
        "I t 1,NULL",
        "table t(*1:a:integer!, 2:b:text)",
        "I t 2,NULL",
    ]
    stream.database.execute("CREATE VIEW v AS SELECT 1")
    with pytest.raises(psycopg.errors.WrongObjectType, match=r"public\.v is not a table"):
        stream.database.execute(f"{note}('v')")
