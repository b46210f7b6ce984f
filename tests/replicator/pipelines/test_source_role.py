"""The rights of a role besides reading are reported, wherever they come from; and such a role runs no document."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgsluice.replicator.pipelines.source_role import check_source_role, read_source_role
from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import UsageError
from tests.servers import Database, PostgresServer


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[Database]:
    made = postgres.create_database("source_of_roles")
    made.execute("CREATE TABLE t (id int PRIMARY KEY)")
    yield made
    made.drop()


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = f"reader_{uuid.uuid4().hex[:8]}"
    database.execute(f"CREATE ROLE {name} LOGIN; GRANT pg_read_all_stats, pg_read_all_data TO {name}")
    yield name
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def rights(database: Database, role: str) -> list[str]:
    async def read() -> list[str]:
        source = await Source.connect(replace(database.settings, user=role))
        try:
            return (await read_source_role(source)).rights
        finally:
            await source.close()

    return asyncio.run(read())


def test_a_role_that_may_only_read_is_told_nothing_of(database: Database, role: str) -> None:
    assert rights(database, role) == []


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("ALTER ROLE {role} REPLICATION", "has REPLICATION"),
        ("ALTER ROLE {role} CREATEROLE", "has CREATEROLE"),
        ("ALTER ROLE {role} SUPERUSER", "is a superuser"),
        ("GRANT INSERT ON t TO {role}", "may write tables"),
        ("GRANT pg_signal_backend TO {role}", "is a member of pg_signal_backend"),
        ("GRANT pg_read_server_files TO {role}", "is a member of pg_read_server_files"),
        ("GRANT pg_execute_server_program TO {role}", "is a member of pg_execute_server_program"),
    ],
)
def test_a_role_that_may_do_more_is_told_of_and_refused_for_a_document(
    database: Database, role: str, statement: str, told: str
) -> None:
    database.execute(statement.format(role=role))
    assert rights(database, role) == [told]

    async def check() -> None:
        source = await Source.connect(replace(database.settings, user=role))
        try:
            await check_source_role(source, "films")
        finally:
            await source.close()

    with pytest.raises(UsageError, match=f"pipeline 'films' is a document, and role '{role}' {told}"):
        asyncio.run(check())


@pytest.mark.parametrize("attribute", ["REPLICATION", "SUPERUSER", "CREATEROLE"])
def test_a_role_that_may_become_a_stronger_one_is_as_strong(database: Database, role: str, attribute: str) -> None:
    """Attributes are not inherited, but a query may call set_config('role', ...)."""
    database.execute(f"CREATE ROLE stronger {attribute} NOLOGIN; GRANT stronger TO {role}")
    try:
        assert rights(database, role) == ["is a member of stronger"]
    finally:
        database.execute("DROP ROLE stronger")


def test_a_role_that_may_connect_elsewhere_from_there_is_told_of(database: Database, role: str) -> None:
    database.execute("CREATE EXTENSION dblink")
    assert rights(database, role) == ["may use dblink"]
    database.execute("DROP EXTENSION dblink")
    assert rights(database, role) == []
