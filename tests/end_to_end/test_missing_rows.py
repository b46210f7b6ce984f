"""Somebody deletes a row at the target: the change that misses it stops the worker, or is set aside; its position finds it."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess

SECRET = "secret"


def said(keys: dict[str, Any], *command: str) -> list[dict[str, Any]]:
    """The JSON lines that a command prints."""
    asked = {key: keys[key] for key in ("group", "nats-url")}
    return [json.loads(line) for line in succeed(Outcome(PgsluiceProcess(*command, config=asked), 30.0)).stdout.splitlines()]


def test_a_change_that_meets_no_row_stops_the_worker_or_is_set_aside_and_applied_when_its_row_is_back(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, target_database, nats_server)
    source_database.execute("CREATE TABLE t (name text PRIMARY KEY, note text)")
    succeed(replicate(keys))
    source_database.execute(f"INSERT INTO t VALUES ('first', 'a'), ('{SECRET}', 'b')")
    succeed(replicate(keys))
    succeed(apply(keys))
    target_database.execute(f"DELETE FROM t WHERE name = '{SECRET}'")
    source_database.execute(f"UPDATE t SET note = 'c' WHERE name = 'first'; DELETE FROM t WHERE name = '{SECRET}'")
    succeed(replicate(keys))

    stopped = apply(keys | {"on-missing-row": "stop"})
    assert stopped.code == 70
    found = re.search(r"the delete of table 'public\.t' at (\S+) met no row", stopped.log)
    assert found is not None
    assert SECRET not in stopped.log
    [message] = said(keys, "messages", "--json", "--from", found[1], "--limit", "1")
    assert [(change["operation"], change["key"]) for change in message["changes"]] == [("DELETE", {"name": SECRET})]
    assert target_database.execute("SELECT * FROM t") == [("first", "a")]

    set_aside = succeed(apply(keys | {"on-missing-row": "dead-letter"}))
    assert SECRET not in set_aside.log
    assert target_database.execute("SELECT * FROM t") == [("first", "c")]
    [letter] = said(keys, "dead", "list", "--json")
    assert (letter["position"], letter["reason"]) == (found[1], "the delete met no row at the target")

    target_database.execute(f"INSERT INTO t VALUES ('{SECRET}', 'b')")
    succeed(Outcome(PgsluiceProcess("dead", "replay", "--all", config={key: keys[key] for key in ("group", "nats-url")}), 30.0))
    succeed(apply(keys))
    assert target_database.execute("SELECT * FROM t") == source_database.execute("SELECT * FROM t")
    assert said(keys, "dead", "list", "--json") == []
