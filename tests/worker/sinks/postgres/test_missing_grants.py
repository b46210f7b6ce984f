"""Of the statements of the page that make the target's role, each one that is left out is missed, and ``check`` says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.shared.preflight.finding import Finding, Severity
from pgsluice.testing.changes_builder import table
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.postgres.findings import find
from tests.worker.sinks.postgres.conftest import Target
from tests.worker.sinks.settings import worker_settings

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "how-to" / "configure.md").read_text()
CUSTOMERS, MISSING = table("public.customers", "id bigint", "name text"), table("public.orders", "id bigint")
GRANTS = [line.partition(";")[0] for line in re.findall(r"^GRANT .*", PAGE[PAGE.index("## The target") :], re.MULTILINE)]
DENIED = [
    ("CONNECT", "DATABASE", "permission denied for database"),
    ("CREATE", "DATABASE", "may not create schema pgsluice"),
    ("TEMPORARY", "DATABASE", "may not make temporary tables"),
    ("USAGE", "SCHEMA", "lacks rights on public.customers"),
    ("CREATE", "SCHEMA", "may not create tables in schema public"),
    *(
        (each, "public.customers", "lacks rights on public.customers")
        for each in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
    ),
]
"""A privilege, on what, and what is found without it."""


@pytest.fixture
def role(target: Target) -> Iterator[str]:
    """A role without any right, in a database where everybody has none; and a table of another's."""
    name, owner = f"pgsluice_{target.database.dbname}", f"owner_{target.database.dbname}"
    database = target.database.dbname
    target.execute(f"DROP SCHEMA IF EXISTS pgsluice CASCADE; CREATE ROLE {name} LOGIN; CREATE ROLE {owner}")
    target.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC")
    target.execute("CREATE TABLE public.customers (id bigint PRIMARY KEY, name text)")
    target.execute(f"ALTER TABLE public.customers OWNER TO {owner}")
    yield name
    target.close()
    with target.database.connect() as connection:
        connection.execute(f"DROP OWNED BY {name}, {owner} CASCADE; DROP ROLE {name}, {owner}".encode())


def grant(target: Target, role: str, left_out: str = "", on: str = "") -> None:
    """All, but for one privilege on a kind of object."""
    for statement in GRANTS:
        found = re.fullmatch(r"GRANT (.+) ON (.+) TO pgsluice", statement)
        if found is None:
            continue  # the owner's rights, which only definitions need
        privileges = [each for each in found[1].split(", ") if each != left_out or not found[2].startswith(on)]
        if privileges:
            place = found[2].replace("DATABASE warehouse", f"DATABASE {target.database.dbname}")
            target.execute(f"GRANT {', '.join(privileges)} ON {place} TO {role}")


def errors(target: Target, role: str) -> list[Finding]:
    settings = replace(target.settings, target=replace(target.settings.target, user=role))
    incoming = Incoming(tables=[CUSTOMERS, MISSING])
    return [each for each in find(worker_settings("orders"), settings, incoming) if each.severity is Severity.ERROR]


def test_nothing_is_missing_with_all_of_them(target: Target, role: str) -> None:
    grant(target, role)
    assert errors(target, role) == []


@pytest.mark.parametrize(("privilege", "on", "told"), DENIED)
def test_each_that_is_left_out_is_found(target: Target, role: str, privilege: str, on: str, told: str) -> None:
    grant(target, role, privilege, on)
    found = errors(target, role)
    assert any(told in each.fact for each in found), [each.fact for each in found]
    statements = [statement for each in found for statement in each.statements]
    assert privilege == "CONNECT" or any(re.search(rf"GRANT .*{privilege}", statement) for statement in statements)
