"""Source databases of other encodings than UTF8."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg import sql

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer

RULES = """
tables:
  t:
    - type: transform
      column: secret
      parameters: {type: mask, mask_char: "*"}
"""
NOT_UTF8 = "convert_from('\\xe9'::bytea, 'SQL_ASCII')"


@pytest.fixture
def database_of(postgres: PostgresServer) -> Iterator[Callable[[str], Database]]:
    made: list[Database] = []

    def make(encoding: str) -> Database:
        name = f"source_{uuid.uuid4().hex[:12]}"
        with postgres.connect() as connection:
            statement = sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0")
            connection.execute(statement.format(sql.Identifier(name), sql.Literal(encoding)))
        made.append(Database(postgres, name))
        return made[-1]

    yield make
    for database in made:
        database.drop()


def dead_letters(keys: dict[str, object]) -> list[dict[str, object]]:
    with PgsluiceProcess("dead", "list", "--json", config=keys) as listing:
        assert listing.wait() == 0, listing.log()
        return [json.loads(line) for line in listing.stdout().splitlines()]


@pytest.mark.timeout(300)
def test_rows_that_are_not_utf8_become_dead_letters_and_the_others_arrive(
    database_of: Callable[[str], Database], target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    source = database_of("SQL_ASCII")
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    more = {"copy-and-stream": True, "rules-config": str(rules)}
    keys = configuration(group, source, target_database, nats_server, **more)
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text, secret text)")
    source.execute(f"INSERT INTO t VALUES (1, 'a', 'abc'), (2, {NOT_UTF8}, 'abc'), (3, 'ü', 'äöü')")
    succeed(replicate(keys))
    source.execute(f"INSERT INTO t VALUES (4, 'd', 'abc'), (5, 'e', {NOT_UTF8}), (6, 'f', 'abc')")
    source.execute("UPDATE t SET note = 'now' WHERE id IN (1, 2)")
    succeed(replicate(keys))
    succeed(apply(keys))
    rows = target_database.execute("SELECT id, note, secret FROM t ORDER BY id")
    assert rows == [(1, "now", "a*c"), (3, "ü", "ä*ü"), (4, "d", "a*c"), (6, "f", "a*c")]
    reasons = [str(letter["reason"]) for letter in dead_letters(keys)]
    assert sorted("is not UTF-8" in reason for reason in reasons) == [False, True, True]


@pytest.mark.timeout(300)
def test_a_source_of_encoding_latin1_arrives_converted(
    database_of: Callable[[str], Database], target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source = database_of("LATIN1")
    keys = configuration(group, source, target_database, nats_server, **{"copy-and-stream": True})
    execute(source, 'CREATE TABLE "tür" (id bigint PRIMARY KEY, "größe" text)', """INSERT INTO "tür" VALUES (1, 'déjà')""")
    succeed(replicate(keys))
    execute(source, """INSERT INTO "tür" VALUES (2, 'vu')""", """UPDATE "tür" SET "größe" = 'ÿ' WHERE id = 1""")
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target_database.execute('SELECT id, "größe" FROM "tür" ORDER BY id') == [(1, "ÿ"), (2, "vu")]


def execute(database: Database, *statements: str) -> None:
    """Whose text is sent as UTF-8, whatever the database's encoding is."""
    with database.connect() as connection:
        connection.execute("SET client_encoding = 'UTF8'")
        for statement in statements:
            connection.execute(statement.encode())
