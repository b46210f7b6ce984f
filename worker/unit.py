"""The worker as a unit of its group: it obeys what is desired of it and of tables, and its process has a record."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pgsluice.shared import telemetry
from pgsluice.shared.alerts.alert_watch import AlertWatch
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.broker.unit_records import worker_unit
from pgsluice.shared.broker.wishes import SeenWish, follow
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.units.desired_state import DesiredState
from pgsluice.shared.units.paused_tables import PAUSED_TABLES
from pgsluice.worker.event_loop import EventLoopThread, WatchedTask
from pgsluice.worker.stopping import WorkerStopping

log = telemetry.logger(__name__)


class WorkerUnit:
    """``stopping`` gets the desired state: to rest, to continue, or to end."""

    def __init__(self, worker: str, bucket: StateBucket, loop: EventLoopThread, stopping: WorkerStopping, pulse: Pulse) -> None:
        self._loop = loop
        self._stopping = stopping
        self._report = ProcessReport(worker_unit(worker), pulse, lambda: bucket)
        self._desired = DesiredState(worker_unit(worker), lambda: bucket, stopping, self._report)
        self._bucket = bucket
        self._tables = SeenWish(PAUSED_TABLES)
        self._tasks: list[WatchedTask] = []

    @property
    def paused_tables(self) -> frozenset[int]:
        """Oids of the currently paused tables."""
        return self._tables.value.oids

    def begin_applying(self) -> bool:
        """Begins to apply the desired state, also while the lease is waited for; returns True. Raises TransientError
        when the broker does not answer the first time."""
        self._loop.run(self._desired.look())
        self._desired.apply()
        self._loop.run(self._look_at_tables())
        self._loop.run(self._begin("the check of paused tables", follow(self._look_at_tables, "which tables are paused")))
        self._loop.run(self._begin("the check of the desired state", self._desired.follow()))
        return True

    def report(self) -> None:
        """Begins reports; with the lease no other process is this worker."""
        self._report.is_claimed = True
        self._loop.run(self._begin("the record of the process", self._report.run()))

    def watch(self, alerts: AlertWatch) -> None:
        """Begins alerts, as long as this process is the unit."""
        self._loop.run(self._begin("the alerts", alerts.run()))

    async def _look_at_tables(self) -> None:
        if await self._tables.look(self._bucket):
            log.info("other tables are paused", tables=len(self.paused_tables))

    async def _begin(self, name: str, call: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(WatchedTask(name, call, self._stopping.end_with))

    async def stop_applying(self) -> None:
        """Stops applying the desired state."""
        while self._tasks:
            await self._tasks.pop().cancel()

    async def tell_end(self, ended_by: BaseException | None) -> None:
        """Records the error that ended the process (None: nothing failed); call it while the lease is held."""
        await self.stop_applying()
        await self._report.tell_end(ended_by, is_finished=not self._stopping.is_requested)
