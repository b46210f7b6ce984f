"""Targets that cannot take a change: one sentence, the right exit code, nothing lost once the cause is gone."""

from __future__ import annotations

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer

SECRET_VALUE = "a value that must not be logged"


@pytest.mark.parametrize(
    ("existing", "named", "repair"),
    [
        ("CREATE TABLE t (id int PRIMARY KEY)", "note", "ALTER TABLE t ADD COLUMN note text"),
        ("CREATE TABLE t (id int PRIMARY KEY, note varchar(3))", "column 'note'", "ALTER TABLE t ALTER note TYPE text"),
    ],
    ids=["missing column", "column too narrow"],
)
def test_a_target_table_that_does_not_fit_stops_the_worker_and_a_repaired_one_gets_everything(
    source_database: Database,
    target_database: Database,
    nats_server: NatsServer,
    group: str,
    existing: str,
    named: str,
    repair: str,
) -> None:
    keys = configuration(group, source_database, target_database, nats_server, **{"max-dead-letters": 0})
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    target_database.execute(existing)
    succeed(replicate(keys))
    source_database.execute(f"INSERT INTO t VALUES (1, '{SECRET_VALUE}')")
    succeed(replicate(keys))
    outcome = apply(keys)
    assert outcome.code == 70, outcome.log
    last_line = outcome.log.strip().splitlines()[-1]
    assert named in last_line
    assert SECRET_VALUE not in outcome.log
    target_database.execute(repair)
    succeed(apply(keys))
    assert target_database.execute("SELECT id, note FROM t") == [(1, SECRET_VALUE)]
