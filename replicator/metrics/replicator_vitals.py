"""The vitals of a replicator, from its start to its end; more metrics are added on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nats.aio.client import Client

from pgsluice.replicator.group_start import Run
from pgsluice.replicator.metrics.group_watch import GroupWatch
from pgsluice.replicator.metrics.replicator_metrics import ReplicatorMetrics
from pgsluice.replicator.metrics.source_watch import SourceWatch
from pgsluice.replicator.tasks import run_until_first
from pgsluice.shared.errors import Cause, PgsluiceError
from pgsluice.shared.metrics.declared_metrics import RECONNECTS
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.metrics.outputs import Outputs
from pgsluice.shared.metrics.vitals import Vitals
from pgsluice.shared.process.pulse import Activity


class ReplicatorVitals:
    """``client`` returns the current connection to NATS; ``has_source`` whether the group's slot, or the source's lock
    for a copy, is this process's."""

    def __init__(self, run: Run, client: Callable[[], Client | None], has_source: Callable[[], bool]) -> None:
        self._settings = run.settings.metrics
        self._run = run
        self._client = client
        self._has_source = has_source
        self._source_watch = SourceWatch(run.settings.source, run.names)
        self._group_watch = GroupWatch(client, run.names)
        self._vitals = Vitals({"group": run.settings.group}, run.pulse, self._conditions)
        counted = ReplicatorMetrics(run, self._settings.tables)
        for collect in (counted.collect, self._reconnects, self._source_watch.collect, self._group_watch.collect):
            self._vitals.add(collect)
        self._outputs = Outputs()
        self._ended = asyncio.Event()
        self._end: PgsluiceError | None = None

    def begin(self) -> None:
        """Shows that the replicator is starting. Raises UsageError or TerminalError when that is not possible there."""
        loop = asyncio.get_running_loop()

        def note(error: PgsluiceError) -> None:
            loop.call_soon_threadsafe(self._note_end, error)

        self._outputs = Outputs.begin(self._settings, self._vitals, note)

    async def run(self) -> None:
        """Reads what metrics need, until it is cancelled. Raises what ended a part of this; never when no metrics are
        exported."""
        watches = [self._source_watch.run(), self._group_watch.run()] if self._settings.are_wanted else []
        await run_until_first([self._part_ends(), *watches])

    async def close(self) -> None:
        """Closes the exports, as the last act of a replicator: until then it shows that it is ending."""
        await asyncio.to_thread(self._outputs.close)

    async def _part_ends(self) -> None:
        await self._ended.wait()
        if self._end is not None:
            raise self._end

    def _note_end(self, error: PgsluiceError) -> None:
        self._end = error
        self._ended.set()

    def _reconnects(self) -> list[Sample]:
        client = self._client()
        return [] if client is None else [RECONNECTS.at(client.stats["reconnects"], "nats")]

    def _conditions(self) -> dict[str, bool]:
        """A replicator that is paused has given the slot back."""
        pulse, client = self._run.pulse, self._client()
        cause = None if pulse.wait is None else pulse.wait.cause
        return {
            "nats": client is not None and client.is_connected and cause is not Cause.NATS,
            "source": self._source_watch.answers and cause is not Cause.SOURCE,
            "slot": pulse.activity is Activity.PAUSED or self._has_source(),
        }
