"""An administrator's preparation for a worker: the permissions of its NATS user, and the stream that it writes."""

from __future__ import annotations

from nats.aio.client import Client

from pgsluice.shared import telemetry
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.nats_permissions import NO_PERMISSIONS, NatsPermissions, group_permissions, target_permissions
from pgsluice.worker.sinks.nats.options import NatsSinkSettings
from pgsluice.worker.sinks.nats.subject_pattern import SubjectPattern
from pgsluice.worker.sinks.nats.target_stream import TTL_HEADER, TargetLimits, TargetStream

log = telemetry.logger(__name__)


def needed_permissions(settings: NatsSinkSettings, *, makes: bool) -> NatsPermissions:
    """Returns the worker's permissions in addition to those of every process of its group; ``makes``: it creates the
    stream itself."""
    if settings.group:
        return group_permissions(GroupNames(settings.group), makes=makes)
    if not settings.stream:
        return NO_PERMISSIONS
    pattern = SubjectPattern.parse(settings.subject, settings.stream)
    return target_permissions(pattern.stream, (pattern.wildcard, pattern.position_subject), makes=makes)


def limits_of(settings: NatsSinkSettings) -> TargetLimits:
    stream = StreamSettings(settings.replicas, settings.placement_tags, settings.max_bytes, "none", 0.0)
    return TargetLimits(stream, settings.max_age_s)


async def make_stream(client: Client, settings: NatsSinkSettings) -> None:
    """Creates the stream, or brings its limits to the settings. Raises as ``TargetStream``, TerminalError for one that
    another program created."""
    pattern, limits = SubjectPattern.parse(settings.subject, settings.stream), limits_of(settings)
    subjects = [pattern.wildcard, pattern.position_subject]
    stream = TargetStream(client, pattern.stream, subjects, pattern.position_subject, limits)
    await stream.check_ours()
    state = await stream.begin()
    last = await stream.message(state.last_sequence) if state.last_sequence else None
    if limits.max_age_s and last is not None and TTL_HEADER not in last.headers:
        log.warning(
            "messages expire as before, for the worker's position is in one that would: start the worker, then run this again",
            stream=stream.name,
        )
        return
    await stream.let_expire()
