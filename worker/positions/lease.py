"""The lease of a worker name, for one process at a time.

The holder writes its identity under ``lease.<worker>`` in the state bucket and rewrites it every RENEWAL_INTERVAL_S. A
waiter watches the entry's revision on its own clock (clocks of two machines are never compared): unchanged for
LEASE_DURATION_S, the holder is gone. On the same host the waiter also sees at once when the holder's process no longer
exists.

The lease keeps two workers from doing the same work. It is not what makes a sink exactly-once: that is the position,
which a sink moves only from the value it knows.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import Bucket
from pgsluice.shared.broker.worker_records import LEASE_DURATION_S, LeaseRecord, lease_key
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.worker.event_loop import Ended, WatchedTask

RENEWAL_INTERVAL_S = 3.0
POLL_INTERVAL_S = 0.25
WAIT_LOG_INTERVAL_S = 10.0

log = telemetry.logger(__name__)


class Lease:
    """The lease of one worker name, or of another object with ``key``: ``holder`` names it in sentences. Used on one
    event loop."""

    def __init__(self, bucket: Bucket, worker: str, key: str = "", holder: str = "") -> None:
        self._bucket = bucket
        self._holder = holder or f"worker '{worker}'"
        self._key = key or lease_key(worker)
        self._revision = 0
        self._renewal: WatchedTask | None = None
        self._renewed_at = 0.0

    @property
    def is_held(self) -> bool:
        """Returns whether no other process may have it now. Any thread may ask."""
        return self._renewal is not None and time.monotonic() - self._renewed_at < LEASE_DURATION_S

    async def acquire(self, on_ended: Ended) -> None:
        """Waits until this process holds the lease, also while the broker does not answer, then renews it in the
        background. ``on_ended`` is called with the reason of its end: TransientError when another process took the
        lease."""
        while True:
            try:
                self._revision = await self._win()
                self._renewed_at = time.monotonic()
                self._renewal = WatchedTask("the renewal of the lease", self._renew(), on_ended)
                return
            except TransientError as error:
                log.warning("waiting for the broker to give the lease", holder=self._holder, reason=str(error))
            await asyncio.sleep(RENEWAL_INTERVAL_S)

    async def _win(self) -> int:
        """Waits for the lease; returns the revision under which this process holds it."""
        waited_since = time.monotonic()
        seen_revision, seen_at, logged_at = -1, 0.0, 0.0
        while True:
            entry = await self._bucket.read(self._key, LeaseRecord)
            now = time.monotonic()
            if entry is None:
                revision = await self._bucket.create(self._key, _identity())
            elif _is_gone(entry.value) or (entry.revision == seen_revision and now - seen_at > LEASE_DURATION_S):
                revision = await self._bucket.update(self._key, _identity(), entry.revision)
            else:
                revision = None
                if entry.revision != seen_revision:
                    seen_revision, seen_at = entry.revision, now
                if now - logged_at > WAIT_LOG_INTERVAL_S:
                    logged_at = now
                    log.warning(
                        "waiting for the lease, which another process holds",
                        holder=self._holder,
                        holder_host=entry.value.host,
                        holder_pid=entry.value.pid,
                        waited_s=now - waited_since,
                    )
            if revision is not None:
                return revision
            await asyncio.sleep(POLL_INTERVAL_S)

    async def release(self) -> None:
        """Stops renewing and gives the lease back; nothing happens when it is not held."""
        if self._renewal is None:
            return
        renewal, self._renewal = self._renewal, None
        await renewal.cancel()
        entry = await self._bucket.read(self._key, LeaseRecord)
        if entry is not None and entry.revision == self._revision:
            await self._bucket.delete(self._key, entry.revision)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_INTERVAL_S)
            try:
                is_ours = await self._is_renewed()
            except TransientError as error:
                log.warning("the lease could not be renewed, trying again", reason=str(error))
                continue
            self._renewed_at = time.monotonic() if is_ours else float("-inf")
            if not is_ours:
                raise TransientError(
                    f"another process took over {self._holder}",
                    "give each worker of a group its own --name",
                    Cause.LOCK,
                )

    async def _is_renewed(self) -> bool:
        revision = await self._bucket.update(self._key, _identity(), self._revision)
        self._revision = revision or self._revision
        return revision is not None or await self._still_ours()

    async def _still_ours(self) -> bool:
        """Returns whether this process still holds the lease: an update whose acknowledgement was lost leaves its
        identity under an unknown revision."""
        entry = await self._bucket.read(self._key, LeaseRecord)
        if entry is None or entry.value != _identity():
            return False
        self._revision = entry.revision
        return True


def _identity() -> LeaseRecord:
    return LeaseRecord(socket.gethostname(), os.getpid(), _boot_id(), _started_at(os.getpid()))


def _is_gone(holder: LeaseRecord) -> bool:
    """Returns whether the holder ran on this very machine and its process has ended. False when that cannot be known."""
    if not holder.boot or (holder.host, holder.boot) != (socket.gethostname(), _boot_id()):
        return False
    return _started_at(holder.pid) != holder.started


def _boot_id() -> str:
    """Returns an identity of this boot of this kernel, and of this process namespace; empty where the system provides
    none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started_at(pid: int) -> str:
    """Returns the process's start time in clock ticks since boot, which distinguishes it from a later one with the same
    number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
