"""Permissions of the NATS user of a group, and the streams and buckets that an administrator creates for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace

from pgsluice.console.documents.control_bucket import CONTROL_BUCKET, ControlBucket
from pgsluice.console.server.audit import AUDIT_STREAM, AUDIT_SUBJECT, REFUSED_STREAM, AuditStream
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.settings import BrokerSetupSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.nats_permissions import (
    EVERYBODYS_INBOX,
    NatsPermissions,
    bucket_permissions,
    client_permissions,
    group_permissions,
    listing_permissions,
    own_inbox,
    stream_permissions,
)
from pgsluice.worker.sinks.nats import prepared_target
from pgsluice.worker.sinks.nats.options import NatsSinkSettings

log = telemetry.logger(__name__)


def print_permissions(settings: BrokerSetupSettings, target: NatsSinkSettings, *, is_pipeline: bool, is_server: bool) -> None:
    """Prints the permissions that the one NATS user of all the group's processes needs, among them a worker that writes
    ``target``."""
    needed = needed_permissions(settings, is_pipeline=is_pipeline, is_server=is_server)
    needed += prepared_target.needed_permissions(target, makes=settings.nats.creates_streams)
    sys.stdout.writelines(f"{line}\n" for line in (*_warnings(settings), *needed.lines()))


def needed_permissions(settings: BrokerSetupSettings, *, is_pipeline: bool, is_server: bool) -> NatsPermissions:
    makes = settings.nats.creates_streams
    names = GroupNames(settings.group)
    needed = client_permissions(own_inbox(settings.nats.inbox_prefix, names)) + group_permissions(names, makes=makes)
    if is_pipeline or is_server:
        needed += bucket_permissions(CONTROL_BUCKET, writes=is_server, makes=makes and is_server)
    if is_server:
        needed += bucket_permissions(names.bucket, writes=True, makes=makes)
        needed += stream_permissions(AUDIT_STREAM, f"{AUDIT_SUBJECT}.*", makes=makes)
        needed += stream_permissions(REFUSED_STREAM, f"{REFUSED_STREAM}.*", makes=makes) + listing_permissions()
    return needed


def _warnings(settings: BrokerSetupSettings) -> Iterator[str]:
    if settings.nats.inbox_prefix == EVERYBODYS_INBOX:
        own = own_inbox(EVERYBODYS_INBOX, GroupNames(settings.group))
        yield f"# {EVERYBODYS_INBOX}.> hears the answers to all users: set nats-inbox-prefix: {own}, as assumed here"
    if settings.nats.creates_streams:
        yield "# a user that may CREATE or UPDATE a stream controls the whole account: set nats-create-streams: false"


def create_streams(settings: BrokerSetupSettings, target: NatsSinkSettings, *, is_pipeline: bool, is_server: bool) -> None:
    """Raises as ``connect``, and TerminalError for what JetStream refuses."""
    asyncio.run(_create(settings, target, is_pipeline=is_pipeline, is_server=is_server))


async def _create(settings: BrokerSetupSettings, target: NatsSinkSettings, *, is_pipeline: bool, is_server: bool) -> None:
    names = GroupNames(settings.group)
    async with connected(replace(settings.nats, creates_streams=True), f"pgsluice nats create {names.group}") as client:
        snapshot, dead, bucket = SnapshotStream(client, names), DeadLetterStream(client, names), StateBucket(client, names)
        for stream in (snapshot,) if is_pipeline else (ChangeStream(client, names), snapshot):
            await stream.ensure(settings.stream)
        await dead.ensure_like(snapshot.name)
        await bucket.ensure(settings.stream)
        log.info("the group's streams and bucket exist", group=names.group)
        if target.stream:
            await prepared_target.make_stream(client, target)
            log.info("the stream of worker nats exists", stream=target.stream)
        if is_server:
            await ControlBucket(client).make(settings.stream.replicas)
            await AuditStream(client, settings.stream.replicas).make()
            log.info("the server's bucket and streams exist")
