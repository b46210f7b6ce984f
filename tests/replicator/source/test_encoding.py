"""What cannot be sent as UTF-8 is said without the bytes, and with a way out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from psycopg import sql

from pgsluice.shared.errors import TerminalError
from tests.replicated_group import Group
from tests.servers import Database, NatsServer, PostgresServer


@pytest.fixture
def group_of(postgres: PostgresServer, nats_server: NatsServer, group: str) -> Iterator[Callable[[str], Group]]:
    """A group whose source has that encoding, with one table t (id, v)."""
    made: list[Database] = []

    def make(encoding: str) -> Group:
        made.append(Database(postgres, f"source_{uuid.uuid4().hex[:12]}"))
        with postgres.connect() as connection:
            statement = sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0")
            connection.execute(statement.format(sql.Identifier(made[-1].dbname), sql.Literal(encoding)))
        made[-1].execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        return Group(group, made[-1], nats_server.settings())

    yield make
    for database in made:
        database.drop()


def test_a_name_that_is_not_utf8_is_refused_at_the_start(group_of: Callable[[str], Group]) -> None:
    replication = group_of("SQL_ASCII")
    name = "convert_from('\\xe9'::bytea, 'SQL_ASCII')"
    replication.source.execute(f"DO $$BEGIN EXECUTE format('CREATE TABLE %I (id int PRIMARY KEY)', {name}); END$$")
    with pytest.raises(TerminalError, match=r"a name that is not UTF-8.*rename") as caught:
        replication.replicate()
    assert "e9" not in str(caught.value)
    replication.replicate(tables=("t",))


def test_a_value_that_has_no_place_in_utf8_is_told_without_its_bytes(group_of: Callable[[str], Group]) -> None:
    replication = group_of("WIN1252")
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, convert_from('\\x81'::bytea, 'SQL_ASCII'))")
    with pytest.raises(TerminalError, match=r"cannot send a value of a row \(SQLSTATE 22P05\)") as caught:
        replication.replicate()
    assert "0x81" not in str(caught.value)
