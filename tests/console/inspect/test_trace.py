"""Where a row is: what the stream holds of it, and what each worker made of that."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgsluice.console.inspect import row_trace
from pgsluice.console.program import run
from pgsluice.rules.transformation_files import load_transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.ledger import Ledger, Phase, TableRecord, now
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.position import Position
from tests.replicated_group import Group
from tests.servers import NatsServer, PostgresServer

RULES = """
tables:
  public.t:
    - type: filter
      column: v
      parameters: {operator: eq, value: kept}
"""


def trace(group: Group, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["trace", "--group", group.name, "--nats-url", group.nats.url, "--json", *arguments]) == code
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def outcomes(found: dict[str, Any]) -> list[dict[str, str]]:
    return [{each["worker"]: each["outcome"] for each in change["workers"]} for change in found["changes"]]


def report(group: Group, worker: str, sequence: int, **fields: Any) -> None:
    async def put(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        await bucket.put(worker_key(worker), WorkerReport(sequence, stream_created=state.created, **fields))

    group.with_broker(put)


@pytest.fixture(scope="module")
def published(postgres: PostgresServer, nats_server: NatsServer) -> Iterator[Group]:
    """A row that was inserted, updated, given another key, and deleted, a message for each, and others beside it."""
    source = postgres.create_database("source_of_traced_rows")
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    group = Group("traced", source, nats_server.settings())
    group.replicate()
    for statement in (
        "INSERT INTO t VALUES (1, 'kept'), (2, 'other')",
        "UPDATE t SET v = 'left out' WHERE id = 1",
        "UPDATE t SET id = 7 WHERE id = 1",
        "DELETE FROM t WHERE id = 7",
    ):
        source.execute(statement)
        group.replicate()
    yield group
    source.drop()


@pytest.fixture
def changed(published: Group) -> Iterator[Group]:
    """That, without a worker, a table that was copied, or a dead letter."""
    before = published.with_broker(lambda _, bucket: bucket.keys())
    yield published

    async def forget(_: ChangeStream, bucket: StateBucket) -> None:
        for key in set(await bucket.keys()) - set(before):
            await bucket.delete(key)
        await DeadLetterStream(bucket._client, published.names).delete()

    published.with_broker(forget)


def test_every_change_of_the_row_is_found_and_no_other(changed: Group, capsys: pytest.CaptureFixture[str]) -> None:
    found = trace(changed, capsys, "t", "id=1")
    assert [change["operation"] for change in found["changes"]] == ["INSERT", "UPDATE", "UPDATE"]
    assert [change["sequence"] for change in found["changes"]] == [1, 2, 3]
    assert found["changes"][2]["change"]["after"] == {"id": 7, "v": "left out"}
    assert (found["table"], found["is_whole"], found["more"]) == ("public.t", True, False)
    assert [change["operation"] for change in trace(changed, capsys, "public.t", "id=7")["changes"]] == ["UPDATE", "DELETE"]
    assert trace(changed, capsys, "t", "id=99", code=1)["changes"] == []


def test_each_workers_place_tells_what_it_has_applied(changed: Group, capsys: pytest.CaptureFixture[str]) -> None:
    report(changed, "ahead", 4)
    report(changed, "behind", 1)
    found = trace(changed, capsys, "t", "id=1")
    assert outcomes(found) == [
        {"ahead": "applied", "behind": "applied"},
        {"ahead": "applied", "behind": "waiting"},
        {"ahead": "applied", "behind": "waiting"},
    ]
    assert found["changes"][2]["workers"][1]["detail"] == "the worker is 2 messages before it"


def test_a_dead_letter_is_told_with_its_reason(changed: Group, capsys: pytest.CaptureFixture[str]) -> None:
    position = trace(changed, capsys, "t", "id=1")["changes"][1]["position"]
    report(changed, "w", 4)

    async def publish() -> None:
        async with connected(changed.nats, "test") as client:
            letters = DeadLetterStream(client, changed.names)
            await letters.ensure_like(changed.names.changes_stream)
            letter = DeadLetter("w", Position.parse(position), "public.t", "the target refuses it", now(), 2, "", 1, b"body")
            await letters.publish(letter)

    asyncio.run(publish())
    [_, dead, _] = trace(changed, capsys, "t", "id=1")["changes"]
    assert dead["workers"] == [{"worker": "w", "outcome": "dead", "detail": "the target refuses it"}]


def test_the_rule_is_named_that_drops_a_change(changed: Group, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    report(changed, "w", 4, rules=load_transformation(str(rules), "").hash)
    with_rules = trace(changed, capsys, "t", "id=1", "--rules-config", str(rules))
    assert outcomes(with_rules)[0] == {"w": "applied"}
    assert trace(changed, capsys, "t", "id=2", "--rules-config", str(rules))["changes"][0]["workers"] == [
        {"worker": "w", "outcome": "dropped", "detail": f"by {rules}:4: table 'public.t', rule 1"}
    ]
    assert outcomes(trace(changed, capsys, "t", "id=2")) == [{"w": "not known"}]


def test_what_the_copy_holds_is_told_apart(changed: Group, capsys: pytest.CaptureFixture[str]) -> None:
    report(changed, "w", 4)
    second = trace(changed, capsys, "t", "id=1")["changes"][1]
    oid = changed.source.execute("SELECT 't'::regclass::oid::int")[0][0]
    lsn = second["position"].partition(":")[0]
    record = TableRecord(oid, "public", "t", Phase.FINISHED_COPY, now(), snapshot="s", lsn=lsn)
    changed.with_broker(lambda _, bucket: Ledger(bucket).store_table(record))
    found = trace(changed, capsys, "t", "id=1")
    assert outcomes(found) == [{"w": "in the copy"}, {"w": "applied"}, {"w": "applied"}]
    assert (found["copied"], found["copy_lsn"]) == ("finished_copy", lsn)


def test_how_far_back_it_looked_is_said(changed: Group, capsys: pytest.CaptureFixture[str]) -> None:
    found = trace(changed, capsys, "t", "id=1", "--messages", "2")
    assert (found["searched_from"], found["is_whole"], len(found["changes"])) == (3, False, 1)
    assert run(["trace", "--group", changed.name, "--nats-url", changed.nats.url, "t", "id=1", "--messages", "2"]) == 0
    assert "the stream holds earlier ones" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["x=1", "id", "=1"])
def test_a_row_that_cannot_be_named_so_is_refused(changed: Group, capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert run(["trace", "--group", changed.name, "--nats-url", changed.nats.url, "t", key]) == 2
    assert "trace" not in capsys.readouterr().out


def test_of_many_changes_the_newest_are_told(
    replication: Group, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    for value in "bcd":
        replication.source.execute(f"UPDATE t SET v = '{value}' WHERE id = 1")
    replication.replicate()
    whole = trace(replication, capsys, "t", "id=1")
    monkeypatch.setattr(row_trace, "MOST_CHANGES", 2)
    found = trace(replication, capsys, "t", "id=1")
    assert (len(whole["changes"]), found["changes"], found["more"]) == (4, whole["changes"][-2:], True)


def test_a_row_of_every_message_is_traced_in_little_memory(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'hot')")
    for n in range(2, 102):
        replication.source.execute(f"UPDATE t SET v = 'hot {n}' WHERE id = 1; INSERT INTO t VALUES ({n}, repeat('x', 400000))")
    replication.replicate()
    assert replication.stream_state().bytes > 40_000_000
    tracemalloc.start()
    try:
        found = trace(replication, capsys, "t", "id=1")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found["changes"]) == 101
    assert most < 25_000_000
