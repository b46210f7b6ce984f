"""A NATS user with the printed permissions reaches nothing of another group that NATS can protect."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from nats.aio.client import Client

from pgsluice.console.program import run
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, connected, disconnect
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.names import GroupNames
from tests.servers.permitted_nats import ADMINISTRATOR, PermittedNats
from tests.waiting import wait_on_loop, wait_until_async

OWN, OTHER = GroupNames("ours"), GroupNames("theirs")
STREAMS = (OTHER.changes_stream, OTHER.snapshot_stream, OTHER.dead_stream, f"KV_{OTHER.bucket}")
SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 28, compression="none", retention_s=1.0)


@pytest.fixture(scope="module")
def nats() -> Iterator[PermittedNats]:
    with PermittedNats({OWN.group: ("--server",), OTHER.group: ()}) as server:
        server.create(OWN.group, "--server")
        server.create(OTHER.group)
        yield server


def as_user(nats: PermittedNats, refusals: list[str]) -> AbstractAsyncContextManager[Client]:
    """With the most that is printed, a server's. What NATS refuses goes into ``refusals``."""
    return connected_as(nats.settings_of(OWN.group), refusals)


@contextlib.asynccontextmanager
async def connected_as(settings: NatsSettings, refusals: list[str]) -> AsyncIterator[Client]:
    client = await connect(settings, "test", told=lambda error: refusals.append(str(error)))
    try:
        yield client
    finally:
        await disconnect(client)


def administrator(nats: PermittedNats) -> AbstractAsyncContextManager[Client]:
    return connected(dataclasses.replace(nats.settings_of(ADMINISTRATOR), inbox_prefix="_INBOX"), "test")


REQUESTS = [
    *(
        f"$JS.API.STREAM.{operation}.{stream}"
        for operation in ("INFO", "MSG.GET", "PURGE", "DELETE", "UPDATE")
        for stream in STREAMS
    ),
    *(f"$JS.API.DIRECT.GET.{stream}" for stream in STREAMS),
    *(f"$JS.API.CONSUMER.CREATE.{stream}" for stream in STREAMS),
    f"$JS.API.DIRECT.GET.KV_{OTHER.bucket}.$KV.{OTHER.bucket}.halt",
    f"$JS.API.STREAM.UPDATE.{OWN.changes_stream}",
    f"$JS.API.STREAM.DELETE.{OWN.changes_stream}",
    f"$JS.API.CONSUMER.CREATE.{OWN.changes_stream}",
    "$JS.API.STREAM.CREATE.another",
    "$JS.API.STREAM.LIST",
    OTHER.changes_subject,
    OTHER.bell_subject,
    OTHER.dead_subject("postgres"),
    f"$KV.{OTHER.bucket}.halt",
    f"$KV.{OTHER.bucket}.desired.replicator",
    f"_INBOX_{OTHER.group}.forged",
]
HEARD = [
    "_INBOX.>",
    f"_INBOX_{OTHER.group}.>",
    "pgsluice.>",
    "$KV.>",
    "$KV.*.>",
    f"$KV.{OTHER.bucket}.>",
    OTHER.bell_subject,
    ">",
]


async def test_nothing_is_said_to_another_group_nor_are_streams_made(nats: PermittedNats) -> None:
    refusals: list[str] = []
    async with as_user(nats, refusals) as user:
        for subject in REQUESTS:
            await user.publish(subject, b"")
        await wait_on_loop(lambda: refused(refusals, "publish") == lowered(REQUESTS), what="refusals of all")
    assert len(nats.violations()) >= len(REQUESTS)


async def test_nothing_is_heard_of_another_group(nats: PermittedNats) -> None:
    refusals: list[str] = []
    async with as_user(nats, refusals) as user:
        for subject in HEARD:
            await user.subscribe(subject)
        await wait_on_loop(lambda: refused(refusals, "subscription") == lowered(HEARD), what="refusals of all")


def refused(refusals: list[str], verb: str) -> set[str]:
    """The subjects, as nats-py tells them."""
    pattern = re.compile(rf'permissions violation for {verb} to "([^"]+)', re.IGNORECASE)
    return {match[1].lower() for refusal in refusals if (match := pattern.search(refusal))}


def lowered(subjects: Sequence[str]) -> set[str]:
    return {subject.lower() for subject in subjects}


async def test_what_an_administrator_made_is_as_its_users_would_make_it(nats: PermittedNats) -> None:
    refusals: list[str] = []
    async with as_user(nats, refusals) as user:
        for stream in (ChangeStream(user, OWN), SnapshotStream(user, OWN)):
            before = await stream.state()
            assert before is not None
            assert await stream.ensure(dataclasses.replace(SETTINGS, max_bytes=0)) == before
        await DeadLetterStream(user, OWN).ensure_like(OWN.changes_stream)
        await StateBucket(user, OWN).ensure(SETTINGS)
        await user.flush()
    assert refusals == []


async def test_a_stream_that_is_other_stays_and_is_told_of(nats: PermittedNats, caplog: pytest.LogCaptureFixture) -> None:
    async with as_user(nats, []) as user:
        stream = ChangeStream(user, OWN)
        before = await stream.state()
        assert await stream.ensure(dataclasses.replace(SETTINGS, max_bytes=1 << 30)) == before
    assert "not as configured" in caplog.text


async def test_what_is_missing_is_an_administrators_to_make(nats: PermittedNats) -> None:
    absent = GroupNames("absent")
    settings = dataclasses.replace(nats.settings_of(ADMINISTRATOR), inbox_prefix="_INBOX")
    async with connected(settings, "test") as client:
        for call in (ChangeStream(client, absent).ensure(SETTINGS), StateBucket(client, absent).ensure(SETTINGS)):
            with pytest.raises(TerminalError, match=r"does not exist.*pgsluice nats create"):
                await call


async def test_an_answer_goes_where_a_request_says_so_the_account_is_the_boundary(nats: PermittedNats) -> None:
    """As docs/how-to/secure.md says. When NATS refuses this, the page can promise more."""
    async with as_user(nats, []) as user, administrator(nats) as client:
        order = b'{"forged": true}'
        stored = await user.jetstream().publish(OWN.changes_subject, order)
        request = json.dumps({"seq": stored.seq}).encode()
        await user.publish(f"$JS.API.DIRECT.GET.{OWN.changes_stream}", request, reply=f"$KV.{OTHER.bucket}.halt")
        bucket = StateBucket(client, OTHER)
        entry = await wait_until_async(lambda: bucket.get("halt"), what="the order in another group's bucket")
        assert entry is not None
        assert entry.value == order


def test_who_may_make_streams_reads_what_that_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nats", "permissions", "--group", "g", "--nats-url", "nats://unasked"]) == 0
    printed = capsys.readouterr().out
    assert "nats-create-streams: false" in printed
    assert "nats-inbox-prefix: _INBOX_g" in printed
    assert '"_INBOX_g.>"' in printed
    assert '"_INBOX.>"' not in printed
    assert "$JS.API.STREAM.CREATE.pgsluice_g_changes" in printed
