"""Findings of ``pgsluice check`` about a target stream: its creation, its owner and its settings. Nothing is created.

Requests are tried as ``shared.broker.broker_findings`` tries them. The permission to publish changes is not tried:
subscribers would receive the message.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client

from pgsluice.shared.broker.broker_findings import denied_of, permission_finding
from pgsluice.shared.broker.connection import REQUEST_TIMEOUT_S, connect, disconnect
from pgsluice.shared.broker.stream_error import absent_error
from pgsluice.shared.broker.streams import ChangeStream, Stream
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.nats.options import NatsSinkSettings
from pgsluice.worker.sinks.nats.prepared_target import needed_permissions
from pgsluice.worker.sinks.nats.published_state import PublishedState
from pgsluice.worker.sinks.nats.subject_pattern import POSITION_SUBJECTS, SubjectPattern
from pgsluice.worker.sinks.nats.target_stream import ATOMIC_SERVER_VERSION

_TRIED = (
    *(f"$JS.API.STREAM.{operation}." for operation in ("INFO", "MSG.GET", "CREATE", "UPDATE")),
    "$JS.API.DIRECT.GET.",
    POSITION_SUBJECTS,
)
"""Beginnings of subjects on which a message that is no request, or expects another stream, changes nothing."""


def find(worker: WorkerSettings, settings: NatsSinkSettings, incoming: Incoming) -> list[Finding]:
    found = Findings(Subject.SINK)
    try:
        if not settings.group:
            pattern = SubjectPattern.parse(settings.subject, settings.stream)
            found.take(pattern.place_names.findings(incoming.tables or ()))
        asyncio.run(_look(worker, settings, found))
    except PgsluiceError as error:
        found.take([Finding.of(error, "nats-stream", Subject.SINK)])
    return list(found)


async def _look(worker: WorkerSettings, settings: NatsSinkSettings, found: Findings) -> None:
    complaints: list[Exception] = []
    client = await connect(worker.nats, f"pgsluice check {worker.group}", told=complaints.append)
    try:
        await _try_requests(client, settings, makes=worker.nats.creates_streams)
        if denied := denied_of(complaints):
            needed = needed_permissions(settings, makes=worker.nats.creates_streams)
            found.take([permission_finding(denied, worker.nats, GroupNames(worker.group), Subject.SINK, needed)])
            return
        version = client.connected_server_version
        if not settings.group and (version.major, version.minor) < ATOMIC_SERVER_VERSION:
            fact = f"NATS server {version.major}.{version.minor} has no atomic batches"
            found.note("nats-version", Severity.ERROR, fact, "upgrade it to 2.12 or later")
        await _look_at_stream(client, worker, settings, found)
    finally:
        await disconnect(client)


async def _try_requests(client: Client, settings: NatsSinkSettings, *, makes: bool) -> None:
    """The answers are complaints, or none; all have come when the server answers the second ping."""
    for subject in needed_permissions(settings, makes=makes).publish:
        if subject.startswith(_TRIED):
            await client.publish(subject, b"{", headers={"Nats-Expected-Stream": "pgsluice-check-stores-nothing"})
    for _ in range(2):
        await client.flush(round(REQUEST_TIMEOUT_S))


async def _look_at_stream(client: Client, worker: WorkerSettings, settings: NatsSinkSettings, found: Findings) -> None:
    if settings.group:
        stream: Stream = ChangeStream(client, GroupNames(settings.group))
    else:
        pattern = SubjectPattern.parse(settings.subject, settings.stream)
        stream = Stream(client, pattern.stream, pattern.wildcard)
    state = await stream.state()
    if state is None:
        if not worker.nats.creates_streams:
            found.take([Finding.of(absent_error(f"stream {stream.name}"), "nats-stream-missing", Subject.SINK)])
        return
    last = await stream.message(state.last_sequence) if state.last_sequence else None
    if state.last_sequence and (last is None or not _is_of(worker, PublishedState.decode(last.headers))):
        fact = f"stream {stream.name} exists, and this worker did not publish its last message"
        found.note("nats-stream-owner", Severity.ERROR, fact, "give another nats-stream, or the worker's name (--name)")
    if state.max_bytes > 0 and state.bytes > 0.9 * state.max_bytes:
        fact = f"stream {stream.name} is nearly full ({state.bytes} of {state.max_bytes} bytes)"
        found.note("nats-stream-room", Severity.WARNING, fact, "raise nats-stream-max-bytes, or give nats-stream-max-age")


def _is_of(worker: WorkerSettings, state: PublishedState | None) -> bool:
    return (
        state is not None and state.worker.startswith(f"{worker.group}/") and worker.name in ("", state.worker.partition("/")[2])
    )
