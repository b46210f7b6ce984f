"""A table without columns goes with the others, from the copy to the changes."""

from __future__ import annotations

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer


@pytest.mark.timeout(300)
def test_rows_without_columns_are_copied_and_followed_and_hold_up_no_other_table(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, target_database, nats_server, **{"copy-and-stream": True})
    source_database.execute(
        "CREATE TABLE nocol (); ALTER TABLE nocol REPLICA IDENTITY FULL; CREATE TABLE t (id bigint PRIMARY KEY);"
        "INSERT INTO nocol SELECT FROM generate_series(1, 5); INSERT INTO t VALUES (1);"
    )
    succeed(replicate(keys))
    source_database.execute("INSERT INTO nocol DEFAULT VALUES; INSERT INTO t VALUES (2)")
    source_database.execute("DELETE FROM nocol WHERE ctid IN (SELECT ctid FROM nocol LIMIT 2)")
    succeed(replicate(keys))
    succeed(apply(keys))
    counts = "SELECT (SELECT count(*) FROM nocol), (SELECT count(*) FROM t)"
    assert source_database.execute(counts) == [(4, 2)]
    assert target_database.execute(counts) == [(4, 2)]
