"""What is ordered over the API: dead letters replayed and discarded, tables copied again; each once, and in the audit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord, publication_of_worker
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.table_orders import ORDERS, note_done
from pgsluice.shared.wire.dead_letter import DeadLetter, now
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.changes_builder import insert, table, transaction
from tests.console.server.served import Served
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.worker.encoded_changes import body_of
from tests.worker.published_stream import STREAM

T = TypeVar("T")
TABLE = table("t", "id bigint")
SECRET = 4711


def ask(nats: NatsServer, question: Callable[[Client], Awaitable[T]]) -> T:
    async def answer() -> T:
        async with connected(nats.settings(), "test") as client:
            return await question(client)

    return asyncio.run(answer())


def letters_in(nats: NatsServer, group: str) -> list[tuple[str, bool]]:
    found = ask(nats, lambda client: DeadLetterStream(client, GroupNames(group)).letters())
    return [(str(stored.letter.position), stored.is_queued) for stored in found]


def publish_letters(nats: NatsServer, group: str, *lsns: int, row: int | None = None) -> list[str]:
    """A letter for each, of rows of their own, or all of ``row``; their positions."""
    ensure_bucket(nats.settings(), group)

    async def publish(client: Client) -> None:
        names = GroupNames(group)
        await ChangeStream(client, names).ensure(STREAM)
        stream = DeadLetterStream(client, names)
        await stream.ensure_like(names.changes_stream)
        for lsn in lsns:
            body = body_of(transaction(LSN(lsn), insert(TABLE, b"%d" % (SECRET + (lsn if row is None else row)))))
            letter = DeadLetter("w", Position(LSN(lsn), 1), "public.t", "the target refuses it", now(), 1, "", 1, body)
            await stream.publish(letter)

    ask(nats, publish)
    return [str(Position(LSN(lsn), 1)) for lsn in lsns]


def test_letters_are_listed_without_values_and_shown_with_them(served: Served, nats_server: NatsServer) -> None:
    [first, _] = publish_letters(nats_server, "letters", 1, 2)
    with served.client(served.token("reader")) as reader, served.client() as admin:
        listed = reader.get("/groups/letters/dead")
        assert [each["reason"] for each in listed.json()["letters"]] == ["the target refuses it"] * 2
        assert str(SECRET + 1) not in listed.text
        assert reader.get("/groups/letters/dead/letter", params={"position": first}).status_code == 403
        shown = admin.get("/groups/letters/dead/letter", params={"position": first}).json()
        assert shown["changes"][0]["after"] == {"id": SECRET + 1}
        assert admin.get("/groups/letters/dead/letter", params={"position": "0/9:1"}).status_code == 404
        assert reader.get("/groups/letters/dead", params={"state": "replay"}).json()["letters"] == []


def test_what_waits_behind_a_letter_is_told_without_values(served: Served, nats_server: NatsServer) -> None:
    [first, second, third] = publish_letters(nats_server, "chained", 1, 3, 4, row=7)
    [other] = publish_letters(nats_server, "chained", 2)
    with served.client(served.token("chained")) as client:
        letters = client.get("/groups/chained/dead").json()["letters"]
        assert {each["position"]: each["behind"] for each in letters} == {first: 2, other: 0, second: 1, third: 0}
        answer = client.get("/groups/chained/dead/behind", params={"position": first})
        assert [each["position"] for each in answer.json()["behind"]] == [second, third]
        assert answer.json()["tables"] == {"public.t": 2}
        assert str(SECRET + 7) not in answer.text
        assert client.get("/groups/chained/dead/behind", params={"position": "0/9:1"}).status_code == 404


def test_letters_are_replayed_and_discarded_by_whom_it_is_allowed(served: Served, nats_server: NatsServer) -> None:
    [first, second] = publish_letters(nats_server, "orders", 1, 2)
    with served.client(served.token("looker")) as viewer, served.client(served.token("acter", "operator")) as operator:
        choice = {"positions": [first], "reason": "the column is there now"}
        assert viewer.post("/groups/orders/dead/replay", json=choice).status_code == 403
        assert operator.post("/groups/orders/dead/replay", json=choice).status_code == 202
        assert letters_in(nats_server, "orders") == [(first, True), (second, False)]
        assert operator.post("/groups/orders/dead/discard", json={"all": True}).status_code == 403
        assert operator.post("/groups/orders/dead/replay", json={"positions": ["0/9:1"]}).status_code == 422
    with served.client() as admin:
        assert admin.post("/groups/orders/dead/discard", json={"positions": [second]}).status_code == 200
        assert letters_in(nats_server, "orders") == [(first, True)]
        pages = [admin.get("/audit", params={"limit": "500", "refused": refused}).json() for refused in ("false", "true")]
        entries = [each["entry"] for page in pages for each in page["entries"]]
    told = [(each["who"], each["action"], each["outcome"]) for each in entries if each["target"].startswith("orders")]
    assert ("acter", "post_groups_group_dead_replay", "done") in told
    assert ("looker", "post_groups_group_dead_replay", "this role may not do it") in told
    assert ("admin", "post_groups_group_dead_discard", "done") in told
    assert "the column is there now" in {each["reason"] for each in entries}


def carry_out(nats: NatsServer, group: str) -> None:
    """As a replicator does with what is open: whoever looks now sees something else than before."""

    async def carry(client: Client) -> None:
        bucket = StateBucket(client, GroupNames(group))
        for order in (await ORDERS.load(bucket)).open:
            await note_done(bucket, order, ())

    ask(nats, carry)


def test_an_order_that_comes_again_is_given_once(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "once")
    order = {"verb": "recopy", "tables": ["t"]}
    with served.client() as client:
        first = client.post("/groups/once/orders", json=order, headers={"Idempotency-Key": "k1"})
        carry_out(nats_server, "once")
        again = client.post("/groups/once/orders", json=order, headers={"Idempotency-Key": "k1"})
        assert (first.status_code, first.text, first.headers["location"]) == (202, again.text, again.headers["location"])
        done = client.get(first.headers["location"].removeprefix("/api/v1")).json()
        assert (done["verb"], bool(done["done_at"])) == ("recopy", True)
        other = client.post("/groups/once/orders", json=order | {"tables": ["u"]}, headers={"Idempotency-Key": "k1"})
        assert (other.status_code, other.json()["where"]) == (422, "Idempotency-Key")
        refused = client.post("/groups/once/orders", json=order | {"tables": ["a.b.c"]}, headers={"Idempotency-Key": "k2"})
        assert refused.status_code == 422
        mended = client.post("/groups/once/orders", json=order, headers={"Idempotency-Key": "k2"})
        assert mended.status_code == 202
    orders = ask(nats_server, lambda client: ORDERS.load(StateBucket(client, GroupNames("once"))))
    assert [each.tables for each in orders.orders] == [("t",), ("t",)]


def test_an_order_about_tables_is_refused_where_no_replicator_carries_it_out(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "derived")
    record = GroupRecord("derived", "1", 1, "d", publication_of_worker("origin/nats"), 0, "", "", now())
    ask(nats_server, lambda client: StateBucket(client, GroupNames("derived")).put(GROUP_KEY, record))
    with served.client() as client:
        refused = client.post("/groups/derived/orders", json={"verb": "recopy", "tables": ["t"]})
    assert refused.status_code == 422
    assert "worker 'nats' of group 'origin' publishes group 'derived'" in refused.json()["detail"]


def test_a_browser_that_writes_proves_that_it_is_our_page(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "browsed")
    order = {"verb": "retry", "tables": ["t"]}
    with served.browser() as browser:
        assert browser.post("/groups/browsed/orders", json=order).status_code == 202
        forged = browser.post("/groups/browsed/orders", json=order, headers={"X-Pgsluice-Csrf": "guess"})
        assert (forged.status_code, forged.json()["type"]) == (403, "urn:pgsluice:foreign")


def test_what_is_no_json_or_too_much_of_it_is_refused(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "refusing")
    with served.client() as client:
        path, json_type = "/groups/refusing/orders", {"Content-Type": "application/json"}
        assert client.post(path, content=b"{", headers=json_type).status_code == 422
        assert client.post(path, content=b"{}").status_code == 415
        assert client.post(path, content=b" " * 2_000_000, headers=json_type).status_code == 413
        assert client.post("/groups/nobody/orders", json={"verb": "retry", "tables": ["t"]}).status_code == 404
