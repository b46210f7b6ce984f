"""What a first start says of rows that people may not expect, or may miss."""

from __future__ import annotations

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer


def test_rows_at_the_target_and_tables_that_inherit_are_named_at_the_first_start_alone(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute(
        "CREATE TABLE readings (id int PRIMARY KEY); CREATE SCHEMA chunks; CREATE TABLE chunks.first () INHERITS (readings);"
        "INSERT INTO chunks.first VALUES (1); INSERT INTO readings VALUES (2)"
    )
    target_database.execute("CREATE TABLE readings (id int PRIMARY KEY); INSERT INTO readings VALUES (3)")
    keys = configuration(group, source_database, target_database, nats_server, **{"copy-and-stream": True})
    copied = succeed(replicate(keys))
    assert "rows of tables that inherit are not copied with their parent" in copied.log
    assert "chunks.first" in copied.log
    said = "stay there unless a row of their key comes: public.readings"
    assert said in succeed(apply(keys)).log
    assert target_database.execute("SELECT id FROM readings ORDER BY 1") == [(2,), (3,)]
    source_database.execute("INSERT INTO readings VALUES (4)")
    succeed(replicate(keys))
    assert said not in succeed(apply(keys)).log
