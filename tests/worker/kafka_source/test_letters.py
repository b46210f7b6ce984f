"""Changes that come through Kafka and that the target refuses: set aside, and applied after all when a person asks for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pgsluice.testing.changes_builder import insert, update
from pgsluice.testing.tried_batches import ACCOUNTS
from tests.end_to_end.once import Outcome, apply, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.kafka import RealKafka
from tests.worker.kafka_source.written_topic import WrittenTopic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

POISON = b"far too long for the target"


def dead(topic: WrittenTopic, *arguments: str) -> str:
    """What ``pgsluice dead`` prints."""
    keys = {key: topic.keys[key] for key in ("group", "nats-url")}
    return succeed(Outcome(PgsluiceProcess("dead", *arguments, config=keys), 60.0)).stdout


def letters(topic: WrittenTopic) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dead(topic, "list", "--json").splitlines()]


def test_a_refused_row_is_a_letter_that_is_replayed_when_the_target_was_mended_or_discarded(
    real_kafka: RealKafka, nats_server: NatsServer, target_database: Database, group: str
) -> None:
    """Later changes of the row wait behind it; those of others go on, and so does the row when its letter is discarded."""
    topic = WrittenTopic(real_kafka, nats_server, group, target_database)
    target_database.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, note varchar(12))")
    topic.write(*(insert(ACCOUNTS, b"%d" % n, POISON if n in (2, 4) else b"short") for n in range(1, 6)))
    assert POISON.decode() not in succeed(apply(topic.keys)).log
    topic.write(update(ACCOUNTS, b"2", b"later"), update(ACCOUNTS, b"3", b"changed"))
    succeed(apply(topic.keys))
    rows = "SELECT id, note FROM accounts ORDER BY id"
    good = [(1, "short"), (3, "changed"), (5, "short")]
    assert target_database.execute(rows) == good
    second, fourth, behind = letters(topic)
    assert {letter["table"] for letter in (second, fourth, behind)} == {"public.accounts"}
    assert second["reason"] == "the target refused it: string data right truncation, SQLSTATE 22001, column 'note'"
    assert json.loads(dead(topic, "show", second["position"]))["after"] == {"id": 2, "note": POISON.decode()}

    dead(topic, "discard", fourth["position"], "--yes")
    target_database.execute("ALTER TABLE accounts ALTER note TYPE text")
    dead(topic, "replay", behind["position"])  # takes the one before along
    topic.write(insert(ACCOUNTS, b"4", b"again"))
    succeed(apply(topic.keys))
    assert target_database.execute(rows) == [(1, "short"), (2, "later"), (3, "changed"), (4, "again"), (5, "short")]
    assert letters(topic) == []
