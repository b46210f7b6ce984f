"""Sinks that show definitions show all of them, those of a table that is copied again, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.opensearch import SearchServer

ALTERED = [
    "ALTER TABLE t ADD COLUMN before text",
    "ALTER TABLE t ALTER v TYPE text USING 'it was ' || v",
    "ALTER TABLE t RENAME v TO words",
    "ALTER TABLE t ADD COLUMN later text",
]
"""The second rewrites the table, which is copied again."""


@pytest.fixture
def keys(
    source_database: Database, nats_server: NatsServer, search_server: SearchServer, group: str, tmp_path: Path
) -> dict[str, Any]:
    """Of a group whose workers have applied the first copy, and whose stream holds what was altered since."""
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    keys: dict[str, Any] = {"search-url": [search_server.url], "search-allow-hosts": ["127.0.0.1"]}
    keys |= {"search-index": f"{group}_{{table}}", "search-schema-index": f"{group}-definitions"}
    keys |= {"track-ddl": True, "copy-and-stream": True, "file-output-dir": str(tmp_path / "out")}
    keys = configuration(group, source_database, None, nats_server, **keys)
    succeed(replicate(keys))
    for sink in ("search", "file"):
        succeed(apply(keys, sink))
    for number, statement in enumerate(ALTERED):
        source_database.execute(statement)
        source_database.execute(f"INSERT INTO t (id) VALUES ({number + 2})")
    succeed(replicate(keys))
    return keys


def told(keys: dict[str, Any]) -> list[dict[str, Any]]:
    """What ``pgsluice ddl log`` has of the alterations."""
    outcome = succeed(Outcome(PgsluiceProcess("ddl", "log", "--json", config=keys), 30))
    return [json.loads(line) for line in outcome.stdout.splitlines()]


@pytest.mark.long
def test_every_definition_of_a_table_that_is_copied_again_is_shown_once_and_in_order(
    keys: dict[str, Any], search_server: SearchServer, tmp_path: Path
) -> None:
    for sink in ("search", "file"):
        succeed(apply(keys, sink))
    definitions = told(keys)
    expected = [each["position"] for each in definitions]
    assert len(expected) >= len(ALTERED)
    history = search_server.documents(f"{keys['group']}-definitions")
    indexed = [document["position"] for _, document in history.values()]
    assert [position for position in expected if position not in indexed] == []
    assert len(indexed) == len(set(indexed))
    lines = [json.loads(line) for path in sorted((tmp_path / "out").rglob("*.json*")) for line in path.read_text().splitlines()]
    shown = [line["position"] for line in lines if line["operation"] == "DDL" and line["position"] in expected]
    assert shown == expected
    recopied = [each["workers"] for each in definitions if "recopied" in each["workers"]["search"]["outcomes"]]
    assert recopied
    assert all(workers["file"]["outcomes"] == ["recopied", "passed on"] for workers in recopied)
