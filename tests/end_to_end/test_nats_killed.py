"""A worker that publishes to a stream is killed, and its server: each change is there once, and transactions are whole."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import groupby
from typing import Any

import pytest

from pgsluice.shared.broker.streams import StoredMessage
from pgsluice.shared.wire.position import Position
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until
from tests.worker.sinks.nats.target import TargetStreamReader, joined

WRITE = "INSERT INTO events (batch, n) SELECT {batch}, n FROM generate_series(1, {rows}) n"


def check_reader(messages: list[StoredMessage], lines: list[dict[str, Any]], rows_of: dict[int, int]) -> None:
    """Order, no gap, nothing twice, whole transactions."""
    positions = [Position.parse(message.headers["Nats-Msg-Id"]) for message in messages]
    assert positions == sorted(set(positions))
    assert Counter(line["after"]["batch"] for line in lines) == rows_of
    for batch, of_one in groupby(lines, key=lambda line: line["after"]["batch"]):
        assert [line["after"]["n"] for line in of_one] == list(range(1, rows_of[batch] + 1))
    for _, of_one_xid in groupby(zip(messages, lines, strict=True), key=lambda each: each[1]["xid"]):
        transaction = [message for message, _ in of_one_xid]
        batches = {message.headers["Nats-Batch-Id"] for message in transaction}
        parts = {message.headers.get("Pgsluice-Part") for message in transaction}
        assert len(batches) == len(parts), "one atomic batch, or one for each part"
        assert (parts == {None}) == (len(transaction) <= 1000)


def test_a_stream_holds_copied_rows_then_changes_once(source_database: Database, nats_server: NatsServer, group: str) -> None:
    """A worker is killed while it publishes."""
    keys = configuration(group, source_database, None, nats_server, **{"copy-and-stream": True, "nats-stream": f"{group}-out"})
    source_database.execute("CREATE TABLE events (batch int, n int, PRIMARY KEY (batch, n))")
    source_database.execute(WRITE.format(batch=0, rows=3000))
    with PgsluiceProcess("replicator", "--until-lsn", "current", config=keys) as replicator:
        assert replicator.wait(120) == 0, replicator.log()
    rows_of = {batch: 2500 if batch == 3 else 300 for batch in range(1, 6)}
    for batch, rows in rows_of.items():
        source_database.execute(WRITE.format(batch=batch, rows=rows))
    succeed(replicate(keys))
    reader = TargetStreamReader(nats_server.settings(), f"{group}-out")
    with PgsluiceProcess("worker", "nats", config=keys) as worker:
        wait_until(lambda: "reading" in worker.log(), deadline_s=60, what="a worker that reads")
        worker.kill()
    with PgsluiceProcess("worker", "nats", "--until-sequence", "current", config=keys) as worker:
        assert worker.wait(120) == 0, worker.log()
    messages = reader.messages()
    lines = list(map(json.loads, joined(messages)))
    assert [line["operation"] for line in lines[:3000]] == ["READ"] * 3000
    assert len({message.headers["Nats-Msg-Id"] for message in messages}) == len(messages)
    check_reader(messages[3000:], lines[3000:], rows_of)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thirty_kills_of_worker_and_server_lose_and_double_nothing(source: Database, nats: NatsServer) -> None:
    keys = configuration("chaos", source, None, nats, **{"nats-stream": "CHAOS"})
    source.execute("CREATE TABLE events (batch int, n int, PRIMARY KEY (batch, n))")
    succeed(replicate(keys))
    chance, rows_of = random.Random(17), dict[int, int]()
    reader = TargetStreamReader(nats.settings(), "CHAOS")
    with PgsluiceProcess("replicator", config=keys) as replicator, PgsluiceProcess("worker", "nats", config=keys) as worker:
        wait_until(lambda: "reading" in worker.log(), deadline_s=120, what="a worker that reads")
        for kill in range(30):
            seen = reader.last_sequence()
            for batch in range(100 * kill, 100 * kill + 100):
                rows_of[batch] = 2300 if batch % 50 == 0 else chance.randint(1, 60)
                source.execute(WRITE.format(batch=batch, rows=rows_of[batch]))
            wait_for_messages(reader, seen + chance.randint(1, 6000))
            victim = nats if kill % 3 == 2 else worker
            victim.kill()
            victim.start()
        wait_until(lambda: replicator.is_running, deadline_s=10, what="a replicator that lived through it")
        replicator.terminate()
        assert replicator.wait(60) == 0, replicator.log()
    succeed(replicate(keys))
    with PgsluiceProcess("worker", "nats", "--until-sequence", "current", config=keys) as last:
        assert last.wait(180) == 0, last.log()
    messages = reader.messages()
    check_reader(messages, list(map(json.loads, joined(messages))), rows_of)


def wait_for_messages(reader: TargetStreamReader, sequence: int) -> None:
    wait_until(lambda: reader.last_sequence() >= sequence, deadline_s=180, what=f"message {sequence}", interval_s=0.05)
