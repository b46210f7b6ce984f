"""Tables that leave, return and are replaced: what the target holds afterwards is what the source holds."""

from __future__ import annotations

import pytest

from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess


def rows(database: Database, table: str) -> list[tuple[object, ...]]:
    return database.execute(f"SELECT id, v FROM {table} ORDER BY id")


def test_a_table_that_returns_and_one_that_was_made_again_are_copied_into_emptied_tables(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source = source_database
    keys = configuration(group, source, target_database, nats_server, **{"copy-and-stream": True})
    for table in ("stays", "leaves", "remade"):
        source.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text); INSERT INTO {table} SELECT n, 'v' FROM generate_series(1, 10) n"
        )
    succeed(replicate(keys | {"tables": "stays,leaves,remade"}))
    succeed(apply(keys))
    assert rows(target_database, "leaves") == rows(source, "leaves")

    left = succeed(replicate(keys | {"tables": "stays,remade"}))
    source.execute(
        "INSERT INTO leaves VALUES (11, 'new'); UPDATE leaves SET v = 'other' WHERE id = 2; DELETE FROM leaves WHERE id = 3"
    )
    source.execute("UPDATE remade SET v = 'late' WHERE id = 9")  # a change of the old table that no worker has applied yet
    succeed(replicate(keys | {"tables": "stays,remade"}))
    shown = status(keys)

    source.execute(
        "DROP TABLE remade; CREATE TABLE remade (id int PRIMARY KEY, v text); INSERT INTO remade VALUES (5, 'a'), (20, 'b')"
    )
    succeed(replicate(keys | {"tables": "stays,leaves,remade"}))
    source.execute("INSERT INTO leaves VALUES (12, 'newer'); INSERT INTO remade VALUES (21, 'c')")
    succeed(replicate(keys | {"tables": "stays,leaves,remade"}))
    succeed(apply(keys))
    for table in ("stays", "leaves", "remade"):
        assert rows(target_database, table) == rows(source, table)
    assert "public.leaves" in left.log
    assert "public.leaves  left" in shown


@pytest.mark.long
def test_after_somebody_altered_the_publication_only_a_new_copy_makes_the_target_equal(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source = source_database
    keys = configuration(group, source, target_database, nats_server, **{"copy-and-stream": True})
    source.execute("CREATE TABLE p (id int PRIMARY KEY, v text); INSERT INTO p SELECT n, 'v' FROM generate_series(1, 10) n")
    source.execute("CREATE TABLE days (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    for n in range(2):
        source.execute(f"CREATE TABLE days_{n} PARTITION OF days FOR VALUES FROM ({n}0) TO ({n + 1}0)")
    source.execute("INSERT INTO days VALUES (1, 'old'), (11, 'new')")
    succeed(replicate(keys))
    succeed(apply(keys))

    publication = GroupNames(group).publication
    source.execute(f"ALTER PUBLICATION {publication} DROP TABLE p")
    source.execute("INSERT INTO p VALUES (11, 'unseen'); UPDATE p SET v = 'unseen' WHERE id = 2")
    source.execute(f"ALTER PUBLICATION {publication} ADD TABLE p")
    source.execute(f"ALTER PUBLICATION {publication} SET (publish = 'insert')")
    source.execute("DELETE FROM p WHERE id = 3")
    source.execute(f"ALTER PUBLICATION {publication} SET (publish = 'insert,update,delete,truncate')")
    source.execute("DROP TABLE days_0")
    for _ in range(2):
        refused = replicate(keys)
        assert refused.code == 70
        assert "changes of public.days,public.p since" in refused.log
    assert "MISSING  changes of public.p" in status(keys)

    succeed(replicate(keys, "--recopy", "p,days"))
    source.execute("INSERT INTO p VALUES (12, 'seen'); INSERT INTO days VALUES (12, 'seen')")
    succeed(replicate(keys))
    succeed(apply(keys))
    for table in ("p", "days"):
        assert rows(target_database, table) == rows(source, table)
    assert "MISSING" not in status(keys)
    assert "changed " not in status(keys)


def status(keys: dict[str, object]) -> str:
    with PgsluiceProcess("status", config=keys) as process:
        assert process.wait() == 0
        return process.stdout()
