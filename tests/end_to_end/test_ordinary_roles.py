"""The documented configuration works with the roles that the documented statements make, as written there and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.end_to_end.group_under_test import GroupUnderTest
from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until

PAGE, SECURE = (
    (Path(__file__).resolve().parents[2] / "docs" / "how-to" / name).read_text() for name in ("configure.md", "secure.md")
)
PASSWORDS = {"SOURCE_PASSWORD": "s'öurce", "TARGET_PASSWORD": "t%40r:get/"}

TABLES = """
CREATE ROLE shop_owner NOLOGIN;
CREATE SCHEMA sales;
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE sales.orders (id int PRIMARY KEY, total numeric);
CREATE TABLE sales.lines (id int PRIMARY KEY, total numeric);
INSERT INTO customers VALUES (1, 'Ada');
INSERT INTO sales.orders VALUES (1, 1.5);
ALTER SCHEMA sales OWNER TO shop_owner;
ALTER TABLE customers OWNER TO shop_owner;
ALTER TABLE sales.orders OWNER TO shop_owner;
ALTER TABLE sales.lines OWNER TO shop_owner;
"""
"""What the documented configuration names, before pgsluice comes."""

CHANGES = """
INSERT INTO customers VALUES (2, 'Edsger'), (3, 'Barbara');
UPDATE customers SET name = 'Grace' WHERE id = 2;
DELETE FROM customers WHERE id = 3;
INSERT INTO sales.lines VALUES (1, 2);
TRUNCATE sales.lines;
INSERT INTO sales.lines VALUES (2, 3.25);
"""


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """Source and target, each with passwords."""
    with ExitStack() as running:
        source = running.enter_context(PostgresServer({"wal_level": "replica"}, password="superuser's"))
        target = running.enter_context(PostgresServer(password="superuser's"))
        yield source, target


@dataclass(frozen=True)
class Shop:
    """Source and target with the roles that the documents make. ``keys`` are the documented configuration."""

    source: Database
    target: Database
    keys: dict[str, Any]


@pytest.fixture
def shop(servers: tuple[PostgresServer, PostgresServer], nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Everybody has none of the rights that PostgreSQL gives PUBLIC."""
    source, target = (server.create_database(name) for server, name in zip(servers, ("shop", "warehouse"), strict=True))
    source.execute(TABLES)
    for database in (source, target):
        database.execute(f"REVOKE ALL ON DATABASE {database.dbname} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC")
    execute(source, block("sql", after="## The source"), PASSWORDS["SOURCE_PASSWORD"])
    execute(target, block("sql", after="## The target"), PASSWORDS["TARGET_PASSWORD"])
    del source.server.settings["wal_level"]  # from the command line it would hide what ALTER SYSTEM set
    source.server.restart()
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)
    return Shop(source, target, documented_configuration(source, target, nats_server))


def test_the_documented_statements_are_enough_for_the_documented_configuration(shop: Shop) -> None:
    source, target, keys = shop.source, shop.target, shop.keys
    succeed(replicate(keys))
    source.execute(CHANGES)
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target.execute("TABLE customers ORDER BY id") == [(2, "Grace")]
    assert target.execute("SELECT id, total::text FROM sales.lines") == [(2, "3.25")]
    for command in (["status"], ["dead", "list"], ["drop", "--yes"]):
        run(keys, *command)
    assert source.execute("SELECT slot_name FROM pg_replication_slots") == []


@pytest.mark.timeout(300)
def test_the_documented_statements_are_enough_for_a_group_that_tracks_definitions_and_is_killed(shop: Shop) -> None:
    """One of the tables is there already, and another role owns it."""
    source, target = shop.source, shop.target
    keys = shop.keys | {"copy-and-stream": True, "track-ddl": True}
    target.execute("CREATE ROLE warehouse_owner; CREATE TABLE customers (id int PRIMARY KEY, name text)")
    target.execute("ALTER TABLE customers OWNER TO warehouse_owner")
    execute(target, block("sql", after="that another role owns"))
    execute(source, block("sql", page=SECURE, after="**Logical messages.**"))
    source.execute(run(keys, "ddl", "sql").stdout)

    def are_equal() -> bool:
        return all(rows(target, table) == rows(source, table) for table in ("customers", "sales.orders", "sales.lines"))

    group = GroupUnderTest(keys)
    with group:
        wait_until(are_equal, what="the copied rows")
        for process in (group.worker, group.replicator):
            process.kill()
        source.execute(CHANGES)
        for process in (group.replicator, group.worker):
            process.start()
        wait_until(are_equal, what="what was changed while both were dead")
        source.execute("ALTER TABLE customers ADD city text; ALTER TABLE sales.orders RENAME total TO sum")
        source.execute("INSERT INTO customers VALUES (4, 'Barbara', 'Boston'); INSERT INTO sales.orders VALUES (2, 7)")
        wait_until(are_equal, what="the altered tables")
        run(keys, "tables", "recopy", "customers")
        wait_until(are_equal, what="the table that was copied again")
        run(keys, "check")
    source.execute(run(keys, "ddl", "sql", "--remove").stdout)
    run(keys, "drop", "--yes")
    assert source.execute("SELECT slot_name FROM pg_replication_slots") == []


def rows(database: Database, table: str) -> list[Any]:
    """As objects, so that names of columns count; empty for a table that is not there."""
    if database.execute("SELECT to_regclass(%s)", [table]) == [(None,)]:
        return []
    return [row for (row,) in database.execute(f"SELECT to_jsonb(t) FROM {table} t ORDER BY id")]


def run(keys: dict[str, Any], *command: str) -> Outcome:
    return succeed(Outcome(PgsluiceProcess(*command, config=keys), 120.0))


def block(language: str, after: str, page: str = PAGE) -> str:
    """The page's first block of code in ``language`` after ``after``."""
    found = re.search(rf"```{language}\n(.*?)```", page[page.index(after) :], re.DOTALL)
    assert found is not None
    return found[1]


def execute(database: Database, statements: str, password: str = "") -> None:
    """One statement after the other, as psql would, by the superuser."""
    assert ("PASSWORD '…'" in statements) is bool(password)
    for line in statements.replace("'…'", psycopg.sql.Literal(password).as_string()).splitlines():
        database.execute(line)


def documented_configuration(source: Database, target: Database, nats: NatsServer) -> dict[str, Any]:
    """As it is written, but for where the servers are."""
    keys: dict[str, Any] = yaml.safe_load(block("yaml", after="## One file for the group"))
    assert keys["tables"] == ["customers", "sales.*"]
    assert (keys["dbname"], keys["target-dbname"]) == (source.dbname, target.dbname)
    where = {"nats-url": nats.url, "host": source.server.host, "port": source.server.port}
    return keys | where | {"target-host": target.server.host, "target-port": target.server.port}
