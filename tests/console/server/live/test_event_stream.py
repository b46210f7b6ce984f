"""What whoever listens hears of groups, and when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_bounds import DocumentBounds
from pgsluice.console.documents.document_store import DocumentStore
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.console.server.access.principal import Principal, Role
from pgsluice.console.server.live.event_stream import HEARTBEAT_S, MOST_STREAMS, EventStreams
from pgsluice.console.server.live.group_looks import GroupLooks
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.record import Record
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.wire.names import GroupNames
from tests.console.server.served import Served
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until


def heard(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and content of each event."""
    kind = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def write(nats: NatsServer, group: str, key: str, record: Record) -> None:
    async def put() -> None:
        async with connected(nats.settings(), "test") as client:
            await StateBucket(client, GroupNames(group)).put(key, record)

    asyncio.run(put())


def drop(nats: NatsServer, group: str) -> None:
    async def destroy() -> None:
        async with connected(nats.settings(), "test") as client:
            await StateBucket(client, GroupNames(group)).destroy()

    asyncio.run(destroy())


def test_what_a_worker_tells_is_heard_within_two_seconds(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "heard")
    with served.client() as client, client.stream("GET", "/events") as answer:
        client.get("/groups/heard")  # which is found by that, and not when groups are listed next
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = heard(answer)
        next(content for kind, content in events if kind == "group" and content["group"] == "heard")
        began = time.monotonic()
        write(nats_server, "heard", worker_key("w"), WorkerReport(7))
        for _, content in events:
            if content["group"] == "heard" and content["status"] and content["status"]["workers"]:
                break
        assert content["status"]["workers"][0]["sequence"] == 7
        assert time.monotonic() - began < 2


def test_a_group_that_is_dropped_is_told(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "dropped")
    with served.client() as client, client.stream("GET", "/events") as answer:
        client.get("/groups/dropped")  # which is found by that, and not when groups are listed next
        events = heard(answer)
        next(content for _, content in events if content["group"] == "dropped")
        drop(nats_server, "dropped")
        assert next(content["group"] for kind, content in events if kind == "gone") == "dropped"
        assert client.get("/groups/dropped").status_code == 404


def test_whoever_comes_again_hears_what_is_new(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "again")
    with served.client() as client:
        client.get("/groups/again")
        newest = max(view["number"] for view in client.get("/groups").json()["groups"])
        with client.stream("GET", "/events", params={"after": newest}) as answer:
            write(nats_server, "again", worker_key("w"), WorkerReport(1))
            kind, content = next(event for event in heard(answer) if event[1]["group"] == "again")
            assert (kind, content["number"] > newest) == ("group", True)


def test_who_loses_the_token_hears_no_more(served: Served, nats_server: NatsServer) -> None:
    token = served.token("listener")
    ensure_bucket(nats_server.settings(), "unheard")
    with served.client(token) as client, client.stream("GET", "/events") as answer:
        events = heard(answer)
        next(events)
        served.run_command("token", "revoke", "listener")
        for number in range(1, 100):
            write(nats_server, "unheard", worker_key("w"), WorkerReport(number))
            if next((event for event in events if event[1]["group"] == "unheard"), None) is None:
                return
    raise AssertionError("it went on")


def test_a_token_has_so_many_streams_at_once_and_others_have_their_own(served: Served) -> None:
    token = served.token("listens-much")
    with contextlib.ExitStack() as opened, served.client(token) as client, served.client() as other:
        for _ in range(MOST_STREAMS):
            listening = opened.enter_context(served.client(token)).stream("GET", "/events")
            assert opened.enter_context(listening).status_code == 200
        with client.stream("GET", "/events") as refused:
            assert refused.status_code == 429
        with other.stream("GET", "/events") as answer:
            assert answer.status_code == 200
        opened.close()
        wait_until(lambda: is_listening(client), what="room for another stream")


def is_listening(client: httpx.Client) -> bool:
    with client.stream("GET", "/events") as answer:
        return answer.status_code == 200


async def test_a_view_is_written_once_however_many_are_sent_it(nats_server: NatsServer) -> None:
    async with connected(nats_server.settings(), "test") as client:
        await StateBucket(client, GroupNames("told-to-many")).make(1)
        looks = GroupLooks(client, DocumentStore(ControlBucket(client), GroupDocument), DocumentBounds)
        await looks.look_now("told-to-many")
        streams = EventStreams(looks, lambda who: True)
        who = Principal("many", Role.VIEWER, "t", groups=("told-to-many",))
        heard = [await anext(streams.open(who, 0).events()) for _ in range(3)]
        assert b"told-to-many" in b"".join(heard)
        assert len(set(map(id, heard))) == 1


async def test_what_changes_right_after_views_were_taken_is_told_at_once(nats_server: NatsServer, group: str) -> None:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.make(1)
        looks = GroupLooks(client, DocumentStore(ControlBucket(client), GroupDocument), DocumentBounds)
        assert await looks.look_now(group) is not None
        who = Principal("one", Role.VIEWER, "t", groups=(group,))
        stream = EventStreams(looks, lambda who: True).open(who, 0).events()
        while f'"group":"{group}"'.encode() not in await anext(stream):
            pass
        del looks._watched[group]
        looks._tell()  # as a look that was due on the loop
        told = await asyncio.wait_for(anext(stream), HEARTBEAT_S / 3)
        while b"event: group" in told:
            told = await asyncio.wait_for(anext(stream), HEARTBEAT_S / 3)
        assert told.startswith(b"event: gone")
        await stream.aclose()
