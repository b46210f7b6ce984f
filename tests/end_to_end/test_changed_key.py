"""A primary key that changes at the source: each change goes by the key of its own time."""

from __future__ import annotations

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer

OTHER_KEY = "ALTER TABLE k DROP CONSTRAINT k_pkey, ADD PRIMARY KEY (u)"


def rows(database: Database) -> list[tuple[object, ...]]:
    return database.execute("SELECT id, u, note FROM k ORDER BY id")


def test_changes_made_before_the_key_changed_find_their_rows_and_those_made_after_it_too(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, target_database, nats_server)
    source_database.execute("CREATE TABLE k (id int PRIMARY KEY, u text NOT NULL, note text)")
    succeed(replicate(keys))
    source_database.execute("INSERT INTO k SELECT n, 'u' || n, 'first' FROM generate_series(1, 4) n")
    succeed(replicate(keys))
    succeed(apply(keys))
    source_database.execute("DELETE FROM k WHERE id = 1")
    source_database.execute("UPDATE k SET id = 20 WHERE id = 2")
    source_database.execute(OTHER_KEY)
    target_database.execute(OTHER_KEY)
    succeed(replicate(keys))  # which learns of all three only now
    refused = apply(keys)
    assert refused.code == 70, refused.log
    assert 'CREATE UNIQUE INDEX ON "public"."k" ("id")' in refused.log.splitlines()[-1]
    target_database.execute("CREATE UNIQUE INDEX ON k (id)")
    source_database.execute("DELETE FROM k WHERE u = 'u3'")
    source_database.execute("UPDATE k SET u = 'u40' WHERE u = 'u4'")
    succeed(replicate(keys))
    applied = succeed(apply(keys))
    assert rows(target_database) == rows(source_database) == [(4, "u40", "first"), (20, "u2", "first")]
    assert "met no row" not in applied.log
