"""A document that a search server refuses: set aside with its reason, the rest indexed, and indexed after all when asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.end_to_end.search_group import Indexed, search_configuration
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.opensearch import FakeOpenSearch

ROWS = 10_000
MAPPING = """
tables:
  items:
    columns:
      payload: {type: object, dynamic: strict, properties: {size: {type: long}}}
"""


@pytest.mark.long
def test_one_bad_document_among_many_is_set_aside_and_replayed_when_the_mapping_was_mended(
    source_database: Database, nats_server: NatsServer, fake_opensearch: FakeOpenSearch, group: str, tmp_path: Path
) -> None:
    source_database.execute("CREATE TABLE items (id bigint PRIMARY KEY, payload jsonb)")
    (tmp_path / "search.yaml").write_text(MAPPING)
    mapping = str(tmp_path / "search.yaml")
    keys = search_configuration(group, source_database, nats_server, fake_opensearch.url, **{"search-mapping": mapping})
    items = Indexed(source_database, nats_server.settings(), group, "items")

    def dead(*arguments: str) -> str:
        broker = {key: keys[key] for key in ("group", "nats-url")}
        return succeed(Outcome(PgsluiceProcess("dead", *arguments, config=broker), 60.0)).stdout

    succeed(replicate(keys))
    payload = """CASE n WHEN 7777 THEN '{"colour": "secret"}' ELSE '{"size": 1}' END::jsonb"""
    source_database.execute(f"INSERT INTO items SELECT n, {payload} FROM generate_series(1, {ROWS}) n")
    succeed(replicate(keys))
    outcome = succeed(apply(keys, "search"))
    assert "secret" not in outcome.log
    assert fake_opensearch.count(items.alias) == ROWS - 1
    (letter,) = [json.loads(line) for line in dead("list", "--json").splitlines()]
    assert letter["table"] == "public.items"
    assert letter["reason"] == "the search server refuses the document (strict_dynamic_mapping_exception)"
    mended = {"properties": {"payload": {"properties": {"colour": {"type": "keyword"}}}}}
    fake_opensearch.ask("PUT", f"/{items.alias}-000001/_mapping", mended)
    dead("replay", "--all")
    succeed(apply(keys, "search"))
    assert dead("list", "--json") == ""
    assert items.differences(fake_opensearch) == []
