"""The documented configuration works with the roles that the documented statements make, as written there and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "configure.md").read_text()
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


@pytest.mark.parametrize("mode", ["stream", "copy-and-stream"])
def test_the_documented_statements_are_enough_for_the_documented_configuration(
    servers: tuple[PostgresServer, PostgresServer], nats_server: NatsServer, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = (server.create_database(name) for server, name in zip(servers, ("shop", "warehouse"), strict=True))
    source.execute(TABLES)
    execute(source, block("sql", after="## The source"), PASSWORDS["SOURCE_PASSWORD"])
    execute(target, block("sql", after="## The target"), PASSWORDS["TARGET_PASSWORD"])
    del source.server.settings["wal_level"]  # from the command line it would hide what ALTER SYSTEM set
    source.server.restart()
    keys = documented_configuration(source, target, nats_server) | {mode: True}
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)

    succeed(replicate(keys))
    source.execute(CHANGES)
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target.execute("TABLE customers ORDER BY id") == [*([(1, "Ada")] if mode == "copy-and-stream" else []), (2, "Grace")]
    assert target.execute("SELECT id, total::text FROM sales.lines") == [(2, "3.25")]
    for command in (["status"], ["dead", "list"], ["drop", "--yes"]):
        succeed(Outcome(PgsluiceProcess(*command, config=keys), 30.0))
    assert source.execute("SELECT slot_name FROM pg_replication_slots") == []


def block(language: str, after: str) -> str:
    """The page's first block of code in ``language`` after ``after``."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE[PAGE.index(after) :], re.DOTALL)
    assert found is not None
    return found[1]


def execute(database: Database, statements: str, password: str) -> None:
    """One statement after the other, as psql would, by the superuser."""
    assert "PASSWORD '…'" in statements
    for line in statements.replace("'…'", psycopg.sql.Literal(password).as_string()).splitlines():
        database.execute(line)


def documented_configuration(source: Database, target: Database, nats: NatsServer) -> dict[str, Any]:
    """As it is written, but for where the servers are."""
    keys: dict[str, Any] = yaml.safe_load(block("yaml", after="## One file for the group"))
    assert keys["tables"] == ["customers", "sales.*"]
    assert (keys["dbname"], keys["target-dbname"]) == (source.dbname, target.dbname)
    where = {"nats-url": nats.url, "host": source.server.host, "port": source.server.port}
    return keys | where | {"target-host": target.server.host, "target-port": target.server.port}
