"""What is found of NATS, with real servers that lack one thing or another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from pgsluice.shared.broker.broker_findings import examined_broker
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.preflight.finding import Finding, Severity
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.nats_permissions import client_permissions, group_permissions
from tests.servers import NatsServer

STREAM = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 28, compression="none", retention_s=1.0)


def printed(*, makes: bool) -> str:
    return (client_permissions("_INBOX_g") + group_permissions(GroupNames("g"), makes=makes)).block()


_LIMITED = f"""
accounts: {{
  SMALL: {{ jetstream: {{ max_file: 300MB }}, users: [ {{ user: small, password: s3cret }} ] }}
  POOR: {{ jetstream: enabled, users: [
    {{ user: deaf, password: s3cret, permissions: {{ subscribe: "pgsluice.>" }} }}
    {{ user: reader, password: s3cret, permissions: {{ publish: "$JS.API.>" }} }}
    {{ user: maker, password: s3cret, {printed(makes=True)} }}
    {{ user: finder, password: s3cret, {printed(makes=False)} }}
  ] }}
}}
"""


async def found(settings: NatsSettings, group: str, stream: StreamSettings = STREAM) -> list[Finding]:
    async with examined_broker(settings, GroupNames(group), stream, copies=True) as examined:
        return list(examined.findings)


def worst(findings: list[Finding]) -> list[tuple[str, Severity]]:
    return [(finding.check, finding.severity) for finding in findings if finding.severity is not Severity.INFO]


@pytest.fixture(scope="module")
def limited() -> Iterator[NatsServer]:
    with NatsServer(config=_LIMITED) as server:
        yield server


async def test_a_server_that_has_all_has_no_faults_and_nothing_is_made(nats_server: NatsServer, group: str) -> None:
    assert worst(await found(nats_server.settings(), group)) == []
    async with connected(nats_server.settings(), "test") as client:
        assert await ChangeStream(client, GroupNames(group)).state() is None


async def test_jetstream_that_is_off_is_found() -> None:
    with NatsServer(jetstream=False) as server:
        [finding] = await found(server.settings(), "g")
    assert finding.severity is Severity.ERROR
    assert "has it off" in finding.fact


async def test_an_account_with_little_storage_is_found(limited: NatsServer) -> None:
    small = dataclasses.replace(limited.settings(), user="small", password="s3cret")
    findings = await found(small, "g")
    assert worst(findings) == [("nats-storage", Severity.ERROR)]
    assert "max_file: " in findings[0].remedy
    assert worst(await found(small, "g", dataclasses.replace(STREAM, max_bytes=1 << 26))) == []
    assert worst(await found(small, "g", dataclasses.replace(STREAM, max_bytes=110 << 20))) == [
        ("nats-storage", Severity.WARNING)
    ]


@pytest.mark.parametrize(
    ("user", "denied"),
    [
        ("deaf", "subscribe _inbox"),
        ("reader", "publish pgsluice.g.changes"),
    ],
)
async def test_what_the_user_may_not_do_is_found_with_the_permissions_that_are_enough(
    limited: NatsServer, user: str, denied: str
) -> None:
    findings = await found(dataclasses.replace(limited.settings(), user=user, password="s3cret"), "g")
    assert worst(findings) == [("nats-permissions", Severity.ERROR)]
    assert denied in findings[0].fact
    assert "set nats-inbox-prefix: _INBOX_g, and give" in findings[0].remedy
    assert '"$KV.pgsluice_g.>"' in findings[0].remedy
    assert '"_INBOX_g.>"' in findings[0].remedy
    assert "API.>" not in findings[0].remedy
    assert "s3cret" not in str(findings)


def of_user(server: NatsServer, user: str, *, makes: bool) -> NatsSettings:
    settings = dataclasses.replace(server.settings(), user=user, password="s3cret")
    return dataclasses.replace(settings, inbox_prefix="_INBOX_g", creates_streams=makes)


async def test_the_printed_permissions_are_enough(limited: NatsServer) -> None:
    assert worst(await found(of_user(limited, "maker", makes=True), "g")) == []


async def test_who_makes_no_streams_needs_no_right_to_and_is_told_which_are_missing(limited: NatsServer) -> None:
    findings = await found(of_user(limited, "finder", makes=False), "g")
    assert worst(findings) == [("nats-stream-missing", Severity.ERROR)] * 2
    assert "pgsluice nats create" in findings[0].remedy
    [refused] = [each for each in await found(of_user(limited, "finder", makes=True), "g") if each.severity is Severity.ERROR]
    assert "publish $js.api.stream.create.pgsluice_g_changes" in refused.fact


async def test_an_existing_stream_with_other_limits_is_told_and_probes_store_nothing(nats_server: NatsServer, group: str) -> None:
    async with connected(nats_server.settings(), "test") as client:
        stream = ChangeStream(client, GroupNames(group))
        before = await stream.ensure(dataclasses.replace(STREAM, max_bytes=1 << 29))
        [difference] = [each for each in await found(nats_server.settings(), group) if each.check == "nats-stream-settings"]
        assert difference.severity is Severity.INFO
        assert "max_bytes 536870912 (configured: 268435456)" in difference.fact
        assert await stream.state() == before


async def test_a_stream_of_somebody_else_on_our_subject_is_found(nats_server: NatsServer, group: str) -> None:
    async with connected(nats_server.settings(), "test") as client:
        await client.jetstream().add_stream(name=f"other_{group}", subjects=[f"pgsluice.{group}.>"])
        try:
            findings = await found(nats_server.settings(), group)
        finally:
            await client.jetstream().delete_stream(f"other_{group}")
    assert worst(findings) == [("nats-stream-overlap", Severity.ERROR)] * 2


async def test_more_replicas_than_servers_are_found(nats_server: NatsServer, group: str) -> None:
    findings = await found(nats_server.settings(), group, dataclasses.replace(STREAM, replicas=3))
    assert worst(findings) == [("nats-replicas", Severity.ERROR)]
