"""The roles that README.md describes, without superuser rights on either side, are enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(password="superuser's") as server:
        yield server


def test_a_table_is_replicated_by_ordinary_roles(server: PostgresServer, nats_server: NatsServer, group: str) -> None:
    source, target = server.create_database("shop"), server.create_database("warehouse")
    source.execute("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'r'; GRANT CREATE ON DATABASE shop TO reader")
    source.execute("CREATE TABLE customers (id int PRIMARY KEY, name text); ALTER TABLE customers OWNER TO reader")
    target.execute("CREATE ROLE writer LOGIN PASSWORD 'w'; GRANT CREATE ON DATABASE warehouse TO writer")
    target.execute("GRANT CREATE ON SCHEMA public TO writer")
    config = {
        "group": group,
        "nats-url": nats_server.url,
        **connection("", source, "reader", "r"),
        **connection("target-", target, "writer", "w"),
    }
    with PgsluiceProcess("replicator", config=config) as replicator:
        wait_until(lambda: has_active_slot(source) or not replicator.is_running, what="the replication slot")
        assert replicator.is_running, replicator.log()
        source.execute("INSERT INTO customers VALUES (1, 'Ada'); UPDATE customers SET name = 'Grace'; TRUNCATE customers")
        source.execute("INSERT INTO customers VALUES (2, 'Edsger')")
        replicator.terminate()
        assert replicator.wait() == 0
    with PgsluiceProcess("replicator", "--until-lsn", "current", config=config) as replicator:
        assert replicator.wait() == 0, replicator.log()
    with PgsluiceProcess("worker", "postgres", "--until-sequence", "current", config=config) as worker:
        assert worker.wait(120) == 0, worker.log()
    assert target.execute("TABLE customers") == [(2, "Edsger")]


def connection(prefix: str, database: Database, user: str, password: str) -> dict[str, str | int]:
    values = {"host": database.server.host, "port": database.server.port, "dbname": database.dbname}
    return {prefix + key: value for key, value in (values | {"user": user, "password": password}).items()}


def has_active_slot(database: Database) -> bool:
    return bool(database.execute("SELECT FROM pg_replication_slots WHERE database = current_database() AND active"))
