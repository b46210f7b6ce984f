"""The webhook sink as a process: from the source's commits to a real receiver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import APPLY_DEADLINE_S, Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.http_server import Answer, Failure, HttpServer
from tests.waiting import wait_until

START_DEADLINE_S = 120.0
STOP_PROMISE_S = 30.0


def webhook_configuration(group: str, source: Database, nats: NatsServer, receiver: HttpServer, **more: Any) -> dict[str, Any]:
    keys = {"webhook-url": receiver.url, "webhook-allow-hosts": ["127.0.0.1"]} | more
    return configuration(group, source, None, nats, **keys)


def test_copied_rows_and_changes_are_posted_each_keys_in_order(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE a (id bigint PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'copied'), (2, 'copied')")
    with HttpServer() as receiver:
        keys = webhook_configuration(group, source_database, nats_server, receiver, **{"copy-and-stream": True})
        succeed(replicate(keys))
        source_database.execute(
            "UPDATE a SET v = 'x' WHERE id = 1; UPDATE a SET v = 'y' WHERE id = 1; DELETE FROM a WHERE id = 2"
        )
        source_database.execute("UPDATE a SET id = 3 WHERE id = 1; INSERT INTO a VALUES (1, 'again'); TRUNCATE a")
        succeed(replicate(keys))
        outcome = succeed(apply(keys, "webhook"))
        objects = receiver.objects()
        assert succeed(apply(keys, "webhook")).code == 0
        assert receiver.objects() == objects
    assert sorted((each["operation"], each["after"]["id"]) for each in objects[:2]) == [("READ", 1), ("READ", 2)]
    of_one = [(each["operation"], each["after"]) for each in objects[2:] if (each["key"] or {}).get("id") == 1]
    assert of_one == [
        ("UPDATE", {"id": 1, "v": "x"}),
        ("UPDATE", {"id": 1, "v": "y"}),
        ("INSERT", {"id": 1, "v": "again"}),
    ]
    assert [each["operation"] for each in objects[-3:]] == ["UPDATE", "INSERT", "TRUNCATE"]
    assert "WARN" not in outcome.log


def stop_while_waiting(keys: dict[str, Any], receiver: HttpServer) -> str:
    """Starts a worker, asks it to stop when a request has arrived; its log."""
    with PgsluiceProcess("worker", "webhook", config=keys) as worker:
        wait_until(lambda: receiver.requests or receiver.under_way, deadline_s=START_DEADLINE_S, what="a request")
        worker.terminate()
        assert worker.wait(STOP_PROMISE_S + 10) == 0, worker.log()
        return worker.log()


@pytest.mark.long
def test_a_worker_that_waits_for_its_receiver_stops_when_asked_and_goes_on_later(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE a (id bigint PRIMARY KEY)")
    with HttpServer() as receiver:
        keys = webhook_configuration(group, source_database, nats_server, receiver)
        succeed(replicate(keys))
        source_database.execute("INSERT INTO a VALUES (1)")
        succeed(replicate(keys))
        receiver.answers, receiver.answer = [Answer(503)], lambda request: Failure.HANG
        log = stop_while_waiting(keys, receiver)
        assert "a request was not accepted, trying again" in log
        assert "Traceback" not in log
        receiver.answer = lambda request: Answer()
        succeed(apply(keys, "webhook"))
        assert [each["after"] for each in receiver.objects()] == [{"id": 1}]
        assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 1


def test_an_address_that_is_not_public_is_refused_unless_it_is_allowed(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    with HttpServer() as receiver:
        source_database.execute("CREATE TABLE a (id bigint PRIMARY KEY)")
        keys = webhook_configuration(group, source_database, nats_server, receiver)
        succeed(replicate(keys))
        outcome = apply(keys | {"webhook-allow-hosts": []}, "webhook")
        assert outcome.code == 70
        assert "the webhook's host 127.0.0.1 is not allowed" in outcome.log
        assert "from=test" not in outcome.log
        assert receiver.requests == []


def test_a_change_that_the_receiver_refuses_becomes_a_dead_letter_with_what_is_behind_it(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE a (id bigint PRIMARY KEY, v text)")
    with HttpServer() as receiver:
        receiver.answer = lambda request: Answer(422 if b'"v":"bad"' in request.body else 200)
        keys = webhook_configuration(group, source_database, nats_server, receiver)
        succeed(replicate(keys))
        source_database.execute(
            "INSERT INTO a SELECT n, CASE n WHEN 7 THEN 'bad' ELSE 'good' END FROM generate_series(1, 1000) n"
        )
        source_database.execute("UPDATE a SET v = 'better' WHERE id <= 10")
        succeed(replicate(keys))
        succeed(apply(keys, "webhook"))
        objects = receiver.objects()
        broker = {key: keys[key] for key in ("group", "nats-url")}
        listed = succeed(Outcome(PgsluiceProcess("dead", "list", "--json", config=broker), APPLY_DEADLINE_S)).stdout
    letters = [json.loads(line) for line in listed.splitlines()]
    assert sorted(each["after"]["id"] for each in objects if each["operation"] == "INSERT") == [
        n for n in range(1, 1001) if n != 7
    ]
    assert sorted(each["after"]["id"] for each in objects if each["operation"] == "UPDATE") == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert [letter["position"] for letter in letters] == sorted(letter["position"] for letter in letters)
    assert len(letters) == 2
    assert "the webhook's receiver answered with status 422" in letters[0]["reason"]
