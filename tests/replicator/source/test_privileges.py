"""What the role lacks at the source is told at once, in statements that are enough."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgsluice.replicator.replicator import run
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import TerminalError
from tests.replicated_group import Group


@pytest.fixture
def role(replication: Group) -> Iterator[str]:
    """A role that may log in and replicate; its name needs quotes."""
    yield from made(replication, f"Reader {uuid.uuid4().hex[:8]}", "LOGIN REPLICATION")


@pytest.fixture
def owner(replication: Group) -> Iterator[str]:
    yield from made(replication, f"owner_{uuid.uuid4().hex[:8]}", "NOLOGIN")


def made(replication: Group, name: str, attributes: str) -> Iterator[str]:
    replication.source.execute(f'CREATE ROLE "{name}" {attributes}')
    yield name
    replication.source.execute(f'REASSIGN OWNED BY "{name}" TO postgres; DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def settings(replication: Group, role: str, *tables: str) -> ReplicatorSettings:
    return replace(replication.settings(tables=tables), source=replace(replication.source.settings, user=role))


def test_every_missing_privilege_is_named_at_once_and_the_statements_are_enough(
    replication: Group, role: str, owner: str
) -> None:
    source = replication.source
    source.execute(
        "CREATE SCHEMA sales; CREATE TABLE sales.orders (id int PRIMARY KEY); CREATE TABLE sales.lines (id int PRIMARY KEY)"
    )
    source.execute(f"ALTER TABLE sales.orders OWNER TO {owner}; ALTER TABLE sales.lines OWNER TO {owner}")
    wanted = settings(replication, role, "t", "sales.*")
    with pytest.raises(TerminalError, match="may not publish") as refusal:
        run(wanted)
    statements = refusal.value.remedy.removeprefix("let an administrator run: ").split("; ")
    assert statements == [
        f'GRANT CREATE ON DATABASE {source.dbname} TO "{role}"',
        f'GRANT USAGE ON SCHEMA sales TO "{role}"',
        f'ALTER TABLE public.t OWNER TO "{role}"',
        f'GRANT {owner} TO "{role}"',
    ]
    for statement in statements:
        source.execute(statement)
    run(wanted)
    source.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO sales.orders VALUES (1)")
    run(wanted)
    assert replication.audit().rows == {"public.t insert": 1, "sales.orders insert": 1}


def test_a_table_that_is_added_needs_its_owner_and_those_that_are_there_do_not(replication: Group, role: str) -> None:
    source = replication.source
    source.execute(f'GRANT CREATE ON DATABASE {source.dbname} TO "{role}"; ALTER TABLE t OWNER TO "{role}"')
    run(settings(replication, role, "t"))
    source.execute("CREATE TABLE added (id int PRIMARY KEY)")
    with pytest.raises(TerminalError) as refusal:
        run(replace(settings(replication, role, "t", "added"), without_copy=("added",)))
    assert refusal.value.remedy == f'let an administrator run: ALTER TABLE public.added OWNER TO "{role}"'


def test_a_long_list_of_statements_is_cut(replication: Group, role: str) -> None:
    for number in range(25):
        replication.source.execute(f"CREATE TABLE many_{number} (id int PRIMARY KEY)")
    with pytest.raises(TerminalError, match=r"; and 7 more like these$"):
        run(settings(replication, role))
