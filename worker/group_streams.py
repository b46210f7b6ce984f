"""The group's two streams, for the worker's driver.

It checks whether they exist, where to continue, and whether they are still the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket, describe_groups, list_groups
from pgsluice.shared.broker.halt import read_halt
from pgsluice.shared.broker.lag import UNKNOWN_LAG, Lag, measure_lag
from pgsluice.shared.broker.published_tables import is_text_unchecked
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, StreamState
from pgsluice.shared.errors import HistoryError, StreamBehindError, TransientError
from pgsluice.shared.units.applied_places import read_published
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN
from pgsluice.worker.batches.change_reader import publisher_prefix
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.positions.check import Start, check_first, check_goes_on, check_snapshot_position, find_start
from pgsluice.worker.sinks.sink import Applied

CHECK_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class _States:
    """The states of existing streams."""

    changes: StreamState | None
    snapshot: StreamState | None


class GroupStreams:
    """Blocking calls over the driver's connection. Each raises TransientError when NATS does not answer."""

    def __init__(self, loop: EventLoopThread, client: Client, names: GroupNames) -> None:
        self._loop = loop
        self._client = client
        self._names = names
        self._changes = ChangeStream(client, names)
        self._snapshot = SnapshotStream(client, names)
        self._bucket = StateBucket(client, names)
        self._created = ""
        self._id_prefix: str | None = None
        self._is_text_unchecked: bool | None = None
        self._checked_at = time.monotonic()

    def exist(self) -> bool:
        """Returns whether there is either, and the state bucket, which the replicator makes after them. A group that
        only copied has no change stream.
        """
        states = self._loop.run(self._states())
        return bool(states.changes or states.snapshot) and self._loop.run(self._bucket.exists())

    def suspect_typo(self) -> str:
        """Returns what may be wrong when they do not exist for long."""
        group = self._names.group
        try:
            groups = self._loop.run(list_groups(self._client))
        except TransientError as error:
            return f"group {group!r} is misspelt ({error.fact})"
        return f"group {group!r} is misspelt, or nats-url names another NATS; {describe_groups(groups)}"

    def created(self) -> str:
        """Identifies the change stream; "" without one."""
        if not self._created:
            changes = self._loop.run(self._changes.state())
            self._created = changes.created if changes else ""
        return self._created

    def published(self) -> tuple[LSN, StreamState | None]:
        """Like ``read_published``."""
        return self._loop.run(read_published(self._bucket))

    def find_start(self, applied: Applied) -> Start:
        """Returns where to continue in the current streams. ``applied`` is the sink's position before this call.

        Raises StreamBehindError while the change stream ends before what is applied, and the replicator may publish it
        again; HistoryError when it found that it cannot, or when the streams are not the applied ones.
        """
        states = self._loop.run(self._states())
        check_snapshot_position(self._names, applied, states.snapshot)
        if states.changes is not None and self._loop.run(self._repeats_commits()):
            check_first(states.changes, applied, self._changes.name)
        try:
            return self._loop.run(find_start(self._changes, self._names, applied, states.changes))
        except StreamBehindError as error:
            halt = self._loop.run(read_halt(self._bucket))
            if halt is None:
                raise
            raise HistoryError(f"{error.fact}, and the replicator stopped: {halt.fact}", halt.remedy) from None

    def lag(self, applied: Applied) -> Lag:
        """Returns the lag of the applied position at the end of the change stream."""
        return self._loop.run(self._lag(applied))

    def check_now_and_then(self, applied: Applied) -> None:
        """Checks every CHECK_INTERVAL_S: a stream that was put back under a running worker would only seem idle. Raises
        HistoryError or StreamBehindError; never because NATS does not answer."""
        if time.monotonic() - self._checked_at < CHECK_INTERVAL_S:
            return
        self._checked_at = time.monotonic()
        try:
            state = self._loop.run(self._changes.state())
        except TransientError:
            return
        check_goes_on(self._names, applied, state)

    def id_prefix(self) -> str:
        """Returns the prefix of the ids of the replicator's change messages; "" for a group that only copied."""
        if self._id_prefix is None:
            self._id_prefix = self._loop.run(publisher_prefix(self._bucket, self._names))
        return self._id_prefix

    def is_text_unchecked(self) -> bool:
        """Returns whether the source's text may be other than UTF-8. The replicator reports it before its first
        message, so it is known when there is a batch."""
        if self._is_text_unchecked is None:
            self._is_text_unchecked = self._loop.run(is_text_unchecked(self._bucket))
        return bool(self._is_text_unchecked)

    async def _repeats_commits(self) -> bool:
        """Returns whether another group's worker publishes this one. Rows that it copies and replays commit at the LSN
        of the change before, so that transaction is no proof that nothing after it was removed."""
        entry = await self._bucket.read(GROUP_KEY, GroupRecord) if await self._bucket.exists() else None
        publisher = None if entry is None else entry.value.publishing_worker
        return publisher is not None and publisher[0] != self._names.group

    async def _lag(self, applied: Applied) -> Lag:
        state = await self._changes.state()
        if state is None or applied.stream_created not in (state.created, ""):
            return UNKNOWN_LAG
        return await measure_lag(self._changes, state, applied.sequence)

    async def _states(self) -> _States:
        return _States(await self._changes.state(), await self._snapshot.state())
