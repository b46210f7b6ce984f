"""The audit holds every write, whatever is done to keep one out of it, or to push one out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StreamConfig
from nats.js.errors import APIError

from pgsluice.console.server import audit
from pgsluice.console.server.api.server_api import MOST_ENTRIES
from pgsluice.console.server.application import MOST_TARGET_LENGTH
from pgsluice.console.server.audit import COUNTING_S, AuditEntry, AuditStream, MissingEntries, now
from pgsluice.console.server.problem import Problem
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.record import encode
from tests.console.server.served import Served
from tests.console.server.test_orders import ask, letters_in, publish_letters
from tests.servers import NatsServer

ENTRY = AuditEntry(now(), "somebody", "viewer", "192.0.2.1", "post_plan", "shop", "this role may not do it")


def entries(client: httpx.Client, *, refused: bool = False) -> list[dict[str, Any]]:
    page = client.get("/audit", params={"limit": str(MOST_ENTRIES), "refused": str(refused).lower()}).json()
    return [each["entry"] for each in page["entries"]]


def test_a_reason_that_no_entry_takes_is_refused_before_anything_is_done(served: Served, nats_server: NatsServer) -> None:
    [letter] = publish_letters(nats_server, "unreasonable", 1)
    with served.client(served.token("unreasonable", "admin")) as client:
        refused = client.post("/groups/unreasonable/dead/discard", json={"all": True, "reason": "x" * 1_048_400})
        assert letters_in(nats_server, "unreasonable") == [(letter, False)]
        assert (refused.status_code, refused.json()["where"]) == (422, "reason")
        newest = entries(client, refused=True)[0]
        assert (newest["action"], newest["target"]) == ("post_groups_group_dead_discard", "unreasonable")
        assert newest["outcome"] == "the request is not valid"


def test_a_target_is_kept_as_far_as_an_entry_has_room(served: Served) -> None:
    with served.client(served.token("long-winded", "admin")) as client:
        client.delete(f"/groups/{'x' * (MOST_TARGET_LENGTH + 1)}/document")
        assert entries(client, refused=True)[0]["target"] == "x" * MOST_TARGET_LENGTH


def test_pages_of_the_audit_hold_each_entry_once(served: Served) -> None:
    with served.client() as client:
        for number in range(3):
            assert client.put(f"/groups/page-{number}/document", json={"yaml": f"group: page-{number}"}).status_code == 201
        pages, before = [], dict[str, str]()
        for _ in range(3):
            page = client.get("/audit", params={"limit": "1", **before}).json()
            pages.append([each["entry"]["target"] for each in page["entries"]])
            before = {"before": str(page["next_before"])}
    assert pages == [["page-2"], ["page-1"], ["page-0"]]


def test_a_write_after_the_audit_was_removed_is_in_a_new_one(served: Served, nats_server: NatsServer) -> None:
    with served.client() as client:
        ask(nats_server, lambda connection: connection.jetstream().delete_stream("pgsluice-audit"))
        answer = client.put("/groups/unseen/document", json={"yaml": "group: unseen", "reason": "nobody\x1b[2J looks"})
        assert answer.status_code == 201
        assert [(each["target"], each["outcome"], each["reason"]) for each in entries(client)] == [
            ("unseen", "done", "nobody [2J looks")
        ]


async def test_nobody_takes_an_entry_out_again(served: Served, nats_server: NatsServer) -> None:
    with served.client() as client:
        client.put("/groups/kept/document", json={"yaml": "group: kept"}, headers={"If-Match": "*"})
        newest = client.get("/audit", params={"limit": "1"}).json()["entries"][0]["sequence"]
    async with connected(nats_server.settings(), "test") as connection:
        jetstream = connection.jetstream()
        for removal in (jetstream.delete_msg("pgsluice-audit", newest), jetstream.purge_stream("pgsluice-audit")):
            with pytest.raises(APIError):
                await removal


def test_writes_that_are_refused_push_nothing_out_and_are_counted(served: Served) -> None:
    """And each entry is in the log, where nobody removes it who reaches NATS."""
    with served.client() as admin, served.client(served.token("flusher")) as viewer:
        admin.put("/groups/unflushed/document", json={"yaml": "group: unflushed"})
        began, minute = admin.get("/audit", params={"limit": "1"}).json()["entries"], int(time.time() // COUNTING_S)
        for _ in range(50):
            assert viewer.put("/groups/unflushed/desired", json={"state": "stopped"}).status_code == 403
        minutes = int(time.time() // COUNTING_S) - minute + 1
        assert admin.get("/audit", params={"limit": "1"}).json()["entries"] == began
        told = [each for each in entries(admin, refused=True) if each["who"] == "flusher"]
        assert 1 <= len(told) <= 2 * minutes
        assert {each["outcome"] for each in told} == {"this role may not do it"}
    log = served.process.log()
    assert "target=unflushed outcome=done" in log
    assert "who=flusher role=viewer" in log


async def test_what_was_refused_last_is_told_when_the_server_ends(connection: Client, tmp_path: Path) -> None:
    with Served(str(connection.connected_url.geturl() if connection.connected_url else ""), tmp_path) as server:
        with server.client(server.token("refused")) as viewer:
            refused = [viewer.put("/groups/last/desired", json={"state": "stopped"}).status_code for _ in range(5)]
        server.process.terminate()
        assert (refused, server.process.wait()) == ([403] * 5, 0)
    told = (await AuditStream(connection).newest(10, refused=True)).entries
    assert sum(each.entry.times for each in told) == 5


@pytest.fixture
async def connection() -> AsyncIterator[Client]:
    """Of a NATS that has no audit yet."""
    with NatsServer() as server:
        async with connected(server.settings(), "test") as client:
            yield client


async def test_of_each_token_and_minute_the_first_and_the_number_are_kept(
    connection: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, begin = AuditStream(connection), 1000 * COUNTING_S
    for at, token in ((0, "a"), (1, "a"), (2, "b"), (59, "a"), (61, "a")):
        monkeypatch.setattr(time, "time", lambda at=at: begin + at)
        await stream.count_refused(token, replace(ENTRY, who=token, target=str(at)))
    await stream.store_counts()
    await stream.store_counts(at_end=True)
    told = (await stream.newest(10, refused=True)).entries[::-1]
    assert [(each.entry.who, each.entry.target, each.entry.times) for each in told] == [
        ("a", "0", 1),
        ("b", "2", 1),
        ("a", "61", 1),
        ("a", "59", 2),
    ]


async def test_a_token_that_has_written_too_much_writes_no_more_and_others_do(
    connection: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_OF_A_TOKEN", 3)
    stream = AuditStream(connection)
    for _ in range(3):
        await stream.ensure("a")
        await stream.add("a", ENTRY)
    with pytest.raises(Problem, match="3 times in 90 days"):
        await stream.ensure("a")
    await stream.ensure("b")
    assert len((await stream.newest(10)).entries) == 3


async def test_a_full_audit_takes_no_write_and_loses_none(connection: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_MOST_BYTES", 4000)
    monkeypatch.setattr(audit, "_ROOM_BYTES", 1000)
    stream = AuditStream(connection)

    async def write() -> None:
        for number in range(100):
            await stream.ensure("a")
            await stream.add("a", replace(ENTRY, target=f"{number}"))

    with pytest.raises(Problem, match="the audit is full"):
        await write()
    await stream.make()  # a server starts all the same
    assert (await stream.newest(100)).entries[-1].entry.target == "0"


async def test_an_audit_of_an_older_version_no_longer_lets_the_oldest_go(connection: Client) -> None:
    jetstream = connection.jetstream()
    older = StreamConfig(
        "pgsluice-audit", subjects=["pgsluice-audit.entries"], discard=DiscardPolicy.OLD, max_bytes=2**20 * 8, deny_purge=True
    )
    await jetstream.add_stream(older)
    await jetstream.publish("pgsluice-audit.entries", encode(ENTRY))
    stream = AuditStream(connection)
    await stream.make()
    await stream.add("a", replace(ENTRY, target="newer"))
    assert [each.entry.target for each in (await stream.newest(10)).entries] == ["newer", "shop"]
    config = (await jetstream.stream_info("pgsluice-audit")).config
    assert (config.discard, config.max_bytes) == (DiscardPolicy.NEW, 2**20 * 8)


async def test_entries_that_somebody_removed_in_nats_are_missed(connection: Client) -> None:
    """By whoever may administer NATS; nobody else can, but nobody else should be able to hide it either."""
    jetstream = connection.jetstream()
    await jetstream.add_stream(StreamConfig("pgsluice-audit", subjects=["pgsluice-audit.entries.*"]))
    stream = AuditStream(connection)
    for number in range(10):
        await stream.add("a", replace(ENTRY, target=str(number)))
    for sequence in (1, 2, 6, 7, 10):
        await jetstream.delete_msg("pgsluice-audit", sequence)
    whole = await stream.newest(100)
    assert [each.sequence for each in whole.entries] == [9, 8, 5, 4, 3]
    assert whole.missing == (MissingEntries(10, 10), MissingEntries(6, 7), MissingEntries(1, 2))
    first = await stream.newest(4)
    assert ([each.sequence for each in first.entries], first.next_before) == ([9, 8], 7)
    assert first.missing == (MissingEntries(10, 10), MissingEntries(7, 7))
    second = await stream.newest(100, first.next_before)
    assert ([each.sequence for each in second.entries], second.next_before) == ([5, 4, 3], None)
    assert second.missing == (MissingEntries(6, 6), MissingEntries(1, 2))
