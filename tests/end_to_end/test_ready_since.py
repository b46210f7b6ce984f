"""Since when the status says that a table is ready."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess


def shown(*command: str, keys: dict[str, Any]) -> dict[str, Any]:
    with PgsluiceProcess(*command, "--json", config=keys) as process:
        assert process.wait() == 0, process.log()
        [table] = json.loads(process.stdout())["tables"]
    return dict(table)


def test_a_table_is_ready_since_a_worker_applied_its_copy_whatever_that_does_later(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    keys = configuration(group, source_database, target_database, nats_server)
    succeed(replicate(keys, "--copy-and-stream"))
    copied = shown("status", keys=keys)
    assert (copied["phase"], copied["since"]) == ("finished_copy", copied["copied_at"])
    before = datetime.now(UTC)
    succeed(apply(keys))
    after = datetime.now(UTC)
    ready = shown("status", keys=keys)
    assert ready["phase"] == "ready"
    assert before <= datetime.fromisoformat(ready["since"]) <= after
    assert ready["copied_at"] == copied["since"]

    source_database.execute("INSERT INTO t VALUES (2)")
    succeed(replicate(keys))
    succeed(apply(keys))
    assert target_database.execute("SELECT count(*) FROM t") == [(2,)]
    for command in (("status",), ("tables", "list")):
        later = shown(*command, keys=keys)
        assert (later["phase"], later["since"]) == ("ready", ready["since"])
