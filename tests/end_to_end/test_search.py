"""The search sink as a process: from the source's commits to the documents of a search server."""

from __future__ import annotations

from typing import Any

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer
from tests.servers.opensearch import FakeOpenSearch

SCHEMA = """
    CREATE TABLE a (id bigint PRIMARY KEY, v text, body text, at timestamptz, price numeric(10,2));
    ALTER TABLE a ALTER body SET STORAGE EXTERNAL;
    INSERT INTO a SELECT n, 'copied', repeat('long ', 2000), '2026-01-31 09:15Z', n * 1.5 FROM generate_series(1, 20) n;
    CREATE TABLE b (id integer PRIMARY KEY);
    INSERT INTO b VALUES (1), (2);
"""
CHANGES = """
    UPDATE a SET v = 'x' WHERE id = 1;
    UPDATE a SET id = 21, v = 'moved' WHERE id = 2;
    DELETE FROM a WHERE id = 3;
    INSERT INTO a VALUES (22, 'new', 'short', NULL, 'NaN');
    INSERT INTO b VALUES (3);
    TRUNCATE b;
    INSERT INTO b VALUES (4);
"""


def test_an_index_holds_what_the_table_holds(
    source_database: Database, nats_server: NatsServer, fake_opensearch: FakeOpenSearch, group: str
) -> None:
    source_database.execute(SCHEMA)
    index = group.replace("_", "-") + "-{schema}-{table}"
    keys: dict[str, Any] = {"search-url": [fake_opensearch.url], "search-allow-hosts": ["127.0.0.1"], "search-index": index}
    keys = configuration(group, source_database, None, nats_server, **keys, **{"copy-and-stream": True})
    succeed(replicate(keys))
    for statement in CHANGES.strip().split(";\n"):
        source_database.execute(statement)
    succeed(replicate(keys))
    outcome = succeed(apply(keys, "search"))
    found = fake_opensearch.documents(index.format(schema="public", table="a"))
    documents = {row_id: source for row_id, (_, source) in found.items()}
    assert documents.keys() == {str(n) for n in (1, *range(4, 23))}
    long = "long " * 2000
    assert documents["1"] == {"id": 1, "v": "x", "body": long, "at": "2026-01-31T09:15:00Z", "price": 1.5}
    assert documents["21"] == {"id": 21, "v": "moved", "body": long, "at": "2026-01-31T09:15:00Z", "price": 3.0}
    assert documents["22"] == {"id": 22, "v": "new", "body": "short", "at": None, "price": None}
    versions = {row_id: version for row_id, (version, _) in found.items()}
    assert versions["4"] < versions["1"] < versions["21"] < versions["22"]
    assert fake_opensearch.documents(index.format(schema="public", table="b")).keys() == {"4"}
    assert "WARN" not in outcome.log
