"""``pgsluice forget``: removes what a group's bucket holds of a worker that does not come back, or of a halted replicator.

As long as it exists, retention keeps every message that the worker has not applied: it may start again at any time.
"""

from __future__ import annotations

import asyncio
import os
import socket

from nats.aio.client import Client

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket, opened_bucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.definition_log import outcomes_key
from pgsluice.shared.broker.halt import lift_halt
from pgsluice.shared.broker.unit_records import desired_key, process_key, worker_unit
from pgsluice.shared.broker.worker_records import (
    LEASE_DURATION_S,
    LeaseRecord,
    batches_key,
    lease_key,
    position_key,
    ready_key,
    worker_key,
    worker_of,
)
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.definitions.definition_decisions import held_key
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.wire.names import GroupNames, replay_name

log = telemetry.logger(__name__)


def run(settings: GroupSettings, worker: str, *, dead_letters: bool) -> None:
    """Raises UsageError when there is no such worker, TerminalError while it runs, TransientError when NATS does not answer."""
    asyncio.run(_forget(settings, worker, dead_letters=dead_letters))


def forget_halt(settings: GroupSettings) -> None:
    """Lets the replicator start again that found another history. Raises UsageError when nothing keeps it from starting."""
    asyncio.run(_forget_halt(settings))


async def _forget_halt(settings: GroupSettings) -> None:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice forget {names.group}") as client:
        bucket = StateBucket(client, names)
        if not await bucket.exists() or not await lift_halt(bucket):
            raise UsageError(f"nothing keeps the replicator of group {names.group!r} from starting", "check group and nats-url")
        log.info("the replicator may start again; it compares source and stream again", group=names.group)


async def _forget(settings: GroupSettings, worker: str, *, dead_letters: bool) -> None:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice forget {names.group}/{worker}") as client:
        await forget_worker(client, names.group, worker, dead_letters=dead_letters)


async def forget_worker(client: Client, group: str, worker: str, *, dead_letters: bool) -> None:
    """Removes a worker's records, over an existing connection."""
    names = GroupNames(group)
    bucket = await opened_bucket(client, names)
    await _check_known(bucket, names, worker)
    await _take_lease(bucket, worker)
    removed = [key for key in _keys(worker) if await bucket.get(key) is not None]
    for key in removed:
        await bucket.delete(key)
    await bucket.delete(lease_key(worker))
    log.info("worker is forgotten; messages wait for it no more", worker=worker, removed=", ".join(removed) or "its lease")
    await _settle_letters(DeadLetterStream(client, names), worker, remove=dead_letters)
    log.info("the position that the worker stores with its output is not removed: a row of pgsluice.applied, or a position file")


def _keys(worker: str) -> list[str]:
    positions = [key(name) for name in (worker, replay_name(worker)) for key in (worker_key, position_key)]
    unit = worker_unit(worker)
    records = [key(worker) for key in (batches_key, ready_key, outcomes_key, held_key)]
    return [*positions, *records, process_key(unit), desired_key(unit)]


async def _check_known(bucket: StateBucket, names: GroupNames, worker: str) -> None:
    known = {key for key in await bucket.keys() if await bucket.get(key) is not None}
    if known.isdisjoint([*_keys(worker), lease_key(worker)]):
        workers = sorted(name for key in known if (name := worker_of(key)) is not None)
        raise UsageError(
            f"group {names.group!r} has no worker {worker!r}",
            f"its workers are: {', '.join(workers)}" if workers else "no worker has ever run",
        )


async def _take_lease(bucket: StateBucket, worker: str) -> None:
    """Takes the lease, so that the worker does not start while its records go."""
    key = lease_key(worker)
    ours = LeaseRecord(socket.gethostname(), os.getpid())
    entry = await bucket.read(key, LeaseRecord)
    if entry is None:
        taken = await bucket.create(key, ours)
    else:
        age_s = await bucket.age_s(key)
        is_free = age_s is None or age_s > LEASE_DURATION_S
        taken = await bucket.update(key, ours, entry.revision) if is_free else None
    if taken is None:
        where = f" on {entry.value.host}, process {entry.value.pid}" if entry else ""
        raise TerminalError(
            f"worker {worker!r} runs{where}",
            f"stop it first; one that was killed is taken for running for {LEASE_DURATION_S:.0f} seconds",
        )


async def _settle_letters(stream: DeadLetterStream, worker: str, *, remove: bool) -> None:
    letters = await stream.letters(worker)
    if letters and remove:
        await stream.remove(letters)
        log.info("its dead letters are removed", letters=len(letters))
    elif letters:
        log.info("its dead letters are kept; --dead-letters or 'pgsluice dead discard' removes them", letters=len(letters))
