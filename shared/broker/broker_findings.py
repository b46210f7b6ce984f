"""Findings of ``pgsluice check`` about NATS: its reachability, permissions, room, and the settings of streams.

Nothing is created or stored. Permissions are tried by messages that JetStream refuses, because they expect another
stream, and by requests that get no answer, because they name no inbox: a server that denies them reports it
nevertheless.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import nats.errors
import orjson
from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StorageType

from pgsluice.shared.broker.connection import REQUEST_TIMEOUT_S, connect, disconnect
from pgsluice.shared.broker.stream_error import absent_error, denied_by
from pgsluice.shared.broker.streams import (
    LEAST_BYTES,
    STREAM_MANAGEMENT,
    ChangeStream,
    SnapshotStream,
    StreamState,
    broker_time,
    stream_configuration,
)
from pgsluice.shared.config.connections import NatsSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.preflight.clock import clock_findings
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.nats_permissions import (
    NO_PERMISSIONS,
    NatsPermissions,
    client_permissions,
    group_permissions,
    own_inbox,
)

PATIENCE_S = 3.0
USUAL_PAYLOAD_BYTES = 1024 * 1024
_JETSTREAM_INFO = "$JS.API.INFO"
_LATER = ("replicas", "max_bytes", "compression")


@dataclass(slots=True)
class ExaminedBroker:
    """``client`` is None without a connection."""

    findings: Findings = field(default_factory=lambda: Findings(Subject.NATS))
    client: Client | None = None


@contextlib.asynccontextmanager
async def examined_broker(
    settings: NatsSettings, names: GroupNames, stream: StreamSettings, *, copies: bool
) -> AsyncIterator[ExaminedBroker]:
    """Yields the findings, and the connection for the time of the block."""
    complaints: list[Exception] = []
    examined = ExaminedBroker()
    try:
        examined.client = await connect(settings, f"pgsluice check {names.group}", PATIENCE_S, complaints.append)
    except PgsluiceError as error:
        denied = denied_of(complaints)
        if denied and isinstance(error, TransientError):
            examined.findings.take([permission_finding(denied, settings, names, Subject.NATS, NO_PERMISSIONS)])
        else:
            examined.findings.take([Finding.of(error, "nats-connection", Subject.NATS)])
    try:
        if examined.client is not None:
            await _BrokerExamination(examined.client, settings, names, stream, examined.findings, complaints).run(copies=copies)
        yield examined
    finally:
        if examined.client is not None:
            await disconnect(examined.client)


def denied_of(complaints: Iterable[Exception]) -> list[str]:
    """Returns what the server did not permit, like "publish pgsluice.orders.changes"."""
    return sorted({denied for complaint in complaints if (denied := denied_by(complaint))})


def permission_finding(
    denied: Sequence[str], settings: NatsSettings, names: GroupNames, subject: Subject, needed: NatsPermissions
) -> Finding:
    """Returns the finding about the permissions of the group's user, who needs ``needed`` and those of every process of
    the group."""
    own = own_inbox(settings.inbox_prefix, names)
    needed = client_permissions(own) + group_permissions(names, makes=settings.creates_streams) + needed
    first = "" if own == settings.inbox_prefix else f"set nats-inbox-prefix: {own}, and "
    return Finding(
        "nats-permissions",
        Severity.ERROR,
        subject,
        f"the NATS user may not: {', '.join(denied)}",
        f"{first}give it in the server's configuration {needed.block()} ('pgsluice nats permissions' prints them, one a line)",
    )


class _BrokerExamination:
    def __init__(
        self,
        client: Client,
        settings: NatsSettings,
        names: GroupNames,
        stream: StreamSettings,
        found: Findings,
        complaints: list[Exception],
    ) -> None:
        self._client = client
        self._settings = settings
        self._names = names
        self._stream = stream
        self._found = found
        self._complaints = complaints

    async def run(self, *, copies: bool) -> None:
        try:
            await self._permissions()
            if denied := denied_of(self._complaints):
                self._found.take([permission_finding(denied, self._settings, self._names, Subject.NATS, NO_PERMISSIONS)])
                return
            missing = [stream for stream in self._streams(copies=copies) if not await self._look_at(stream)]
            await self._room(len(missing))
            self._cluster()
            if self._client.max_payload < USUAL_PAYLOAD_BYTES:
                fact = f"max_payload of the NATS server is {self._client.max_payload} bytes: larger messages go in pieces"
                self._found.note("nats-max-payload", Severity.WARNING, fact, "set max_payload: 1MB in its configuration")
            if self._stream.replicas == 1:
                fact = "with stream-replicas: 1 a power cut can lose messages that NATS acknowledged in the two minutes before"
                remedy = "set jetstream { sync_interval: always } in the server's configuration, or use three replicas"
                self._found.note("nats-sync-interval", Severity.INFO, fact, remedy)
        except PgsluiceError as error:
            self._found.take([Finding.of(error, "nats-interrupted", Subject.NATS)])
        except (nats.errors.Error, TimeoutError) as error:
            fact = f"NATS did not answer while it was looked at ({type(error).__name__})"
            self._found.note("nats-interrupted", Severity.ERROR, fact, "check again")

    def _streams(self, *, copies: bool) -> list[ChangeStream | SnapshotStream]:
        changes = ChangeStream(self._client, self._names)
        return [changes, SnapshotStream(self._client, self._names)] if copies else [changes]

    async def _permissions(self) -> None:
        """The answers are complaints, or none; all have come when the server answers the ping."""
        names, refused = self._names, {"Nats-Expected-Stream": "pgsluice-check-stores-nothing"}
        stored = [names.changes_subject, f"{names.snapshot_subjects[:-1]}check", f"$KV.{names.bucket}.check"]
        for subject in stored:
            await self._client.publish(subject, b"", headers=refused)
        for stream in (names.changes_stream, names.snapshot_stream, names.dead_stream, f"KV_{names.bucket}"):
            for operation in ("INFO", "MSG.GET", *(("CREATE", "UPDATE") if self._settings.creates_streams else ())):
                await self._client.publish(f"{STREAM_MANAGEMENT}{operation}.{stream}", b"{")
        subscription = await self._client.subscribe(names.bell_subject)
        for _ in range(2):  # a ping goes ahead of what waits to be sent; by its answer all of that is sent
            await self._client.flush(round(PATIENCE_S))
        await subscription.unsubscribe()

    async def _look_at(self, stream: ChangeStream | SnapshotStream) -> bool:
        """Returns whether the stream exists."""
        asked = datetime.now(UTC)
        answer = await self._request(f"{STREAM_MANAGEMENT}INFO.{stream.name}")
        if "error" in answer and not self._settings.creates_streams:
            self._found.take([Finding.of(absent_error(f"stream {stream.name}"), "nats-stream-missing", Subject.NATS)])
        if "error" in answer:
            await self._overlap(stream)
            return False
        if told := answer.get("ts"):
            self._found.take(clock_findings(Subject.NATS, asked, broker_time(told), datetime.now(UTC)))
        state = await stream.state()
        self._compare(stream.name, answer["config"], state)
        return True

    def _compare(self, name: str, config: dict[str, Any], state: StreamState | None) -> None:
        wanted = stream_configuration(name, config["subjects"], self._stream)
        lasting = [("storage", StorageType.FILE), ("retention", RetentionPolicy.LIMITS)]
        for key, value in lasting:
            if config[key] != self._shown(value):
                fact = (
                    f"stream {name} was made with {key} {config[key]}, and JetStream does not change that to {self._shown(value)}"
                )
                remedy = "it is not pgsluice's: choose another group, or remove it with 'nats stream rm'"
                self._found.note("nats-stream-settings", Severity.ERROR, fact, remedy)
        names = {"replicas": "num_replicas"}
        differences = [
            f"{key} {config[names.get(key, key)]} (configured: {self._shown(wanted[names.get(key, key)])})"
            for key in _LATER
            if config[names.get(key, key)] != self._shown(wanted[names.get(key, key)])
            and not (key == "max_bytes" and not self._stream.max_bytes)
        ]
        if differences:
            fact = f"stream {name} has {', '.join(differences)}"
            remedy = "the replicator's next start changes that"
            if not self._settings.creates_streams:
                remedy = "have an administrator run 'pgsluice nats create'"
            self._found.note("nats-stream-settings", Severity.INFO, fact, remedy)
        if state is not None and 0 < self._stream.max_bytes < state.bytes:
            fact = f"stream {name} holds {state.bytes} bytes, more than stream-max-bytes ({self._stream.max_bytes}): it is full"
            self._found.note("nats-stream-full", Severity.ERROR, fact, "raise stream-max-bytes")

    @staticmethod
    def _shown(value: Any) -> Any:
        return getattr(value, "value", value)

    async def _overlap(self, stream: ChangeStream | SnapshotStream) -> None:
        subject = self._names.changes_subject if isinstance(stream, ChangeStream) else self._names.snapshot_subjects
        try:
            answer = await self._request("$JS.API.STREAM.NAMES", {"subject": subject})
        except (nats.errors.Error, TimeoutError):
            return  # the group needs no permission on the names of all streams
        for other in answer.get("streams") or []:
            fact = f"stream {other} listens on {subject}, so {stream.name} cannot be made"
            self._found.note("nats-stream-overlap", Severity.ERROR, fact, "take that subject out of it, or remove it")

    async def _room(self, missing: int) -> None:
        """Checks the account's room; JetStream does not report what the servers have left."""
        account = await self._request(_JETSTREAM_INFO)
        limits = account.get("limits") or {}
        for tier in (account.get("tiers") or {}).values():
            limits = tier.get("limits") or limits
        each = (self._stream.max_bytes or LEAST_BYTES) * self._stream.replicas
        most, reserved = limits.get("max_storage", -1), account.get("reserved_storage", account.get("storage", 0))
        check, advised, taken = "nats-storage", 3 * each, missing * each
        room = max(advised, reserved + advised)
        remedy = f"raise the account's limit (jetstream: {{ max_file: {room} }}), or lower stream-max-bytes"
        if 0 <= most < reserved + taken:
            fact = (
                f"the NATS account may store {most} bytes, of which {reserved} are reserved; {missing} new streams take {taken}"
            )
            self._found.note(check, Severity.ERROR, fact, remedy)
        elif 0 <= most < advised:
            fact = f"the NATS account may store {most} bytes, less than three times stream-max-bytes ({advised})"
            self._found.note(check, Severity.WARNING, fact, remedy)
        largest = limits.get("storage_max_stream_bytes", -1)
        if 0 < largest < (self._stream.max_bytes or LEAST_BYTES):
            fact = f"a stream of the NATS account may have {largest} bytes, less than stream-max-bytes"
            self._found.note(check, Severity.ERROR, fact, "raise max_stream_bytes of the account, or lower stream-max-bytes")

    def _cluster(self) -> None:
        information, wanted = self._client._server_info, self._stream.replicas
        servers = max(1, len(information.get("connect_urls") or ()))
        if wanted > 1 and not information.get("cluster"):
            fact = f"stream-replicas is {wanted}, and the NATS server is in no cluster"
            self._found.note("nats-replicas", Severity.ERROR, fact, "set stream-replicas: 1, or make it a cluster")
        elif wanted > servers:
            fact = f"stream-replicas is {wanted}, and the NATS cluster reports {servers} servers"
            self._found.note("nats-replicas", Severity.WARNING, fact, f"set stream-replicas to {servers} at most, or add servers")
        if self._stream.placement_tags:
            tags = ", ".join(self._stream.placement_tags)
            fact = f"whether {wanted} servers have the tags {tags} shows when the streams are made"
            self._found.note("nats-placement", Severity.INFO, fact, "nats server list --json names each server's tags")

    async def _request(self, subject: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = await self._client.request(subject, orjson.dumps(content or {}), timeout=REQUEST_TIMEOUT_S)
        decoded: dict[str, Any] = orjson.loads(answer.data)
        return decoded
