"""Subscribing over the API: the challenge, whose a subscription is, how many there may be, and what is never told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from pgsluice.console.subscriptions.challenge import CHALLENGE
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.published_tables import store_tables
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.subscriptions.subscription_records import SubscriptionRecord, subscription_key
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import table
from pgsluice.worker.sinks.subscriptions.subscription_secret import (
    master_keys,
    subscription_secrets,
    subscription_signer,
)
from tests.console.server.served import Served
from tests.servers import NatsServer
from tests.servers.http_server import Answer, HttpServer, Received
from tests.state_bucket import ensure_bucket

pytestmark = pytest.mark.timeout(120)

SECRET = "whsec_" + "c2VjcmV0" * 6
PATH = "in-the-path-4711"
MOST = 3
RULES = """tables:
  orders:
    - {type: filter, column: status, parameters: {operator: eq, value: paid}}
"""


@pytest.fixture(scope="module")
def server(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options: dict[str, Any] = {
        "subscriptions-secret": SECRET,
        "subscriptions-allow-hosts": "127.0.0.1",
        "subscriptions-per-owner": str(MOST),
    }
    with Served(nats_server.url, tmp_path_factory.mktemp("webhooks"), **options) as served:
        yield served


@pytest.fixture
def receiver() -> Iterator[HttpServer]:
    with HttpServer() as receiver:
        receiver.answer = send_back
        yield receiver


@pytest.fixture
def webhooks(nats_server: NatsServer, group: str) -> str:
    """The endpoints' path, for a group that there is."""
    ensure_bucket(nats_server.settings(), group)
    return f"/groups/{group}/webhooks"


def send_back(request: Received) -> Answer:
    content = orjson.loads(request.body)
    assert content["type"] == CHALLENGE
    return Answer(body=orjson.dumps({"challenge": content["challenge"]}))


def wish(receiver: HttpServer, number: int = 0) -> dict[str, object]:
    return {"url": f"http://127.0.0.1:{receiver.port}/{PATH}/{number}", "table": "orders", "event_types": ["delete", "insert"]}


def test_a_receiver_that_sends_the_challenge_back_is_subscribed(
    server: Served, receiver: HttpServer, webhooks: str, nats_server: NatsServer, group: str
) -> None:
    with server.client() as client:
        made = client.post(f"{webhooks}/subscribe", json=wish(receiver))
        assert made.status_code == 200, made.text
        identifier = made.json()["id"]
        assert client.post(f"{webhooks}/subscribe", json=wish(receiver)).json()["id"] == identifier
        (listed,) = client.get(webhooks).json()["subscriptions"]
        assert (listed["state"], listed["table"], listed["events"]) == ("new", "orders", ["insert", "delete"])
        assert client.post(f"{webhooks}/pause", json={"id": identifier}).json()["state"] == "paused"
        assert client.post(f"{webhooks}/resume", json={"id": identifier}).json()["state"] == "new"
        assert client.post(f"{webhooks}/replay", json={"id": identifier, "since": "noon"}).status_code == 422
        assert client.post(f"{webhooks}/replay", json={"id": identifier, "since": "2026-01-31"}).status_code == 200
        again = stored(nats_server, group, identifier)
        assert (again.resumed, again.back_to) == (2, 0)
        assert client.post(f"{webhooks}/unsubscribe", json={"id": identifier}).status_code == 200
        assert client.get(webhooks).json() == {"subscriptions": []}
        assert client.post(f"{webhooks}/unsubscribe", json={"id": identifier}).status_code == 404
    (challenged,) = receiver.requests
    signer = subscription_signer(master_keys(SECRET), group, identifier)
    key, timestamp = challenged.headers["webhook-id"], int(challenged.headers["webhook-timestamp"])
    assert signer.headers(key, timestamp, challenged.body)["webhook-signature"] == challenged.headers["webhook-signature"]


def publish_tables(nats: NatsSettings, group: str, *tables: Table) -> None:
    """What a group's replicator says of its tables."""

    async def publish() -> None:
        async with connected(nats, "test") as client:
            await store_tables(StateBucket(client, GroupNames(group)), tables, "UTF8")

    asyncio.run(publish())


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"table": "orders"}, ""),
        ({"schema": "shop", "table": "orders"}, ""),
        ({"schema": "shop"}, ""),
        ({"table": "order"}, "*.order"),
        ({"table": "shop.orders"}, "*.shop.orders"),
        ({"schema": "public", "table": "orders"}, "public.orders"),
        ({"schema": "public"}, "public.*"),
    ],
)
def test_who_subscribes_to_a_table_that_is_not_there_is_told_so(
    server: Served,
    receiver: HttpServer,
    webhooks: str,
    nats_server: NatsServer,
    group: str,
    asked: dict[str, str],
    wanted: str,
) -> None:
    """It may come later, so that is no error."""
    with server.client() as client:
        body = {"url": f"http://127.0.0.1:{receiver.port}/", **asked}
        assert client.post(f"{webhooks}/subscribe", json=body).json()["reason"] == "", "nobody knows of any table yet"
        publish_tables(nats_server.settings(), group, table("shop.orders", "id bigint"))
        told = client.post(f"{webhooks}/subscribe", json=body).json()["reason"]
        assert client.get(webhooks).json()["subscriptions"][0]["reason"] == told
    if wanted:
        assert told.startswith(f"the group has no table {wanted}: nothing comes unless ")
        assert told.endswith("; it has shop.orders")
    else:
        assert told == ""


def test_who_subscribes_twice_at_the_same_time_is_subscribed_once(server: Served, receiver: HttpServer, webhooks: str) -> None:
    """As who hears nothing for a while, and asks again."""
    all_asked = threading.Barrier(3, timeout=4)

    def send_back_together(request: Received) -> Answer:
        all_asked.wait()
        return send_back(request)

    receiver.answer = send_back_together
    with server.client() as client, ThreadPoolExecutor(3) as pool:
        made = [pool.submit(client.post, f"{webhooks}/subscribe", json=wish(receiver)) for _ in range(3)]
        assert {each.result().status_code for each in made} == {200}
        (listed,) = client.get(webhooks).json()["subscriptions"]
        assert {each.result().json()["id"] for each in made} == {listed["id"]}


@pytest.mark.parametrize(
    "answer", [Answer(), Answer(500), Answer(body=b'{"challenge": "mine"}'), Answer(302, {"Location": "http://example.com"})]
)
def test_a_receiver_that_does_not_send_it_back_is_refused(
    answer: Answer, server: Served, receiver: HttpServer, webhooks: str
) -> None:
    receiver.answer = lambda request: answer
    with server.client() as client:
        assert client.post(f"{webhooks}/subscribe", json=wish(receiver)).status_code == 409
        assert client.get(webhooks).json() == {"subscriptions": []}


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "[::1]", "localhost."])
def test_an_address_that_is_not_public_is_refused(host: str, server: Served, webhooks: str) -> None:
    with server.client() as client:
        answer = client.post(f"{webhooks}/subscribe", json={"url": f"http://{host}:9/{PATH}"})
        assert answer.status_code in (409, 503)
        assert PATH not in answer.text
        assert client.get(webhooks).json() == {"subscriptions": []}


def test_rules_are_kept_and_shown_and_other_rules_are_another_subscription(
    server: Served, receiver: HttpServer, webhooks: str, nats_server: NatsServer, group: str
) -> None:
    with server.client() as client:
        plain = client.post(f"{webhooks}/subscribe", json=wish(receiver)).json()
        ruled = client.post(f"{webhooks}/subscribe", json=wish(receiver) | {"rules": RULES}).json()
        assert client.post(f"{webhooks}/subscribe", json=wish(receiver) | {"rules": RULES}).json()["id"] == ruled["id"]
        assert (plain["rules"], ruled["rules"], plain["id"] == ruled["id"]) == ("", RULES, False)
        assert stored(nats_server, group, ruled["id"]).rules == RULES


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (RULES.replace("eq", "near"), "rules:3: table 'orders', rule 1: operator 'near' is unknown"),
        ("tables: &t {orders: *t}", "anchors and aliases are not taken here"),
        ("tables: " + "{a: " * 1500, "is nested more than 20 levels deep"),
        (RULES + "#" * 8000, "rules have more than 8000 characters"),
        ("\0", "not valid YAML"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused_before_the_receiver_hears_of_it(
    rules: str, said: str, server: Served, receiver: HttpServer, webhooks: str
) -> None:
    with server.client() as client:
        answer = client.post(f"{webhooks}/subscribe", json=wish(receiver) | {"rules": rules})
        assert answer.status_code == 422
        assert said in answer.text
        assert client.get(webhooks).json() == {"subscriptions": []}
    assert receiver.requests == []


def test_an_owner_has_so_many_and_touches_their_own_only(server: Served, receiver: HttpServer, webhooks: str, group: str) -> None:
    ann, bob = (server.token(f"{name}-{group}", "operator", values=True) for name in ("ann", "bob"))
    with server.client(ann) as client:
        made = [client.post(f"{webhooks}/subscribe", json=wish(receiver, number)) for number in range(MOST + 1)]
        assert [answer.status_code for answer in made] == [200] * MOST + [422]
        mine = made[0].json()["id"]
    with server.client(bob) as client:
        assert client.post(f"{webhooks}/subscribe", json=wish(receiver)).status_code == 200
        for verb in ("unsubscribe", "pause", "resume", "replay"):
            assert client.post(f"{webhooks}/{verb}", json={"id": mine}).status_code == 404
    with server.client() as client:
        assert client.post(f"{webhooks}/unsubscribe", json={"id": mine}).status_code == 200
    assert len(receiver.requests) == MOST + 1


def test_neither_a_url_nor_a_secret_is_in_any_answer_or_log(
    server: Served, receiver: HttpServer, webhooks: str, nats_server: NatsServer, group: str
) -> None:
    texts = []
    with server.client() as client:
        texts.append(client.post(f"{webhooks}/subscribe", json=wish(receiver)).text)
        identifier = orjson.loads(texts[0])["id"]
        texts.append(client.post(f"{webhooks}/subscribe", json=wish(receiver) | {"event_types": ["none"]}).text)
        receiver.answer = lambda request: Answer(500)
        texts.append(client.post(f"{webhooks}/subscribe", json=wish(receiver, 2)).text)
        texts += [client.get(path).text for path in (webhooks, "/audit")]
    assert f"{identifier} http://127.0.0.1:{receiver.port}" in texts[-1]
    (own,) = subscription_secrets(master_keys(SECRET), group, identifier)
    told = "".join(texts) + server.process.log()
    assert [secret for secret in (PATH, SECRET, own) if secret in told] == []
    assert PATH in stored(nats_server, group, identifier).url


def stored(nats_server: NatsServer, group: str, identifier: str) -> SubscriptionRecord:
    async def read() -> SubscriptionRecord:
        async with connected(nats_server.settings(), "test") as client:
            entry = await StateBucket(client, GroupNames(group)).read(subscription_key(identifier), SubscriptionRecord)
            assert entry is not None
            return entry.value

    return asyncio.run(read())
