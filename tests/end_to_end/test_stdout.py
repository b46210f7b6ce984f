"""The stdout sink as a process: JSON lines in commit order, and nothing else."""

from __future__ import annotations

import json

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer


def test_stdout_holds_one_json_line_per_change_in_commit_order_and_nothing_else(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, None, nats_server)
    source_database.execute(
        "CREATE TABLE a (id bigint PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, n numeric, ok boolean)"
    )
    succeed(replicate(keys))
    source_database.execute(
        "BEGIN; INSERT INTO a VALUES (9007199254740993, 'x'); INSERT INTO b VALUES (1, 0.10, true); UPDATE a SET v = NULL; COMMIT"
    )
    source_database.execute("DELETE FROM b")
    succeed(replicate(keys))
    outcome = succeed(apply(keys, "stdout"))
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [(line["operation"], line["table"]) for line in lines] == [
        ("INSERT", "a"),
        ("INSERT", "b"),
        ("UPDATE", "a"),
        ("DELETE", "b"),
    ]
    assert lines[0]["after"] == {"id": 9007199254740993, "v": "x"}
    assert '"n":0.10' in outcome.stdout.splitlines()[1].replace(" ", "")
    assert lines[2]["after"]["v"] is None
    assert "WARN" not in outcome.log
    assert succeed(apply(keys, "stdout")).stdout == ""


def test_transactions_are_framed_on_request(source_database: Database, nats_server: NatsServer, group: str) -> None:
    keys = configuration(group, source_database, None, nats_server)
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    succeed(replicate(keys))
    source_database.execute("BEGIN; INSERT INTO a VALUES (1); INSERT INTO a VALUES (2); COMMIT")
    succeed(replicate(keys))
    lines = [json.loads(line) for line in succeed(apply(keys, "stdout", "--transactions")).stdout.splitlines()]
    assert [line["operation"] for line in lines] == ["BEGIN", "INSERT", "INSERT", "COMMIT"]
