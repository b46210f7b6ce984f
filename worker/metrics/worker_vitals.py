"""What a worker shows, from its first line to its last; it comes to know more on the way."""

from __future__ import annotations

from collections.abc import Callable

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import Cause, PgsluiceError
from pgsluice.shared.metrics.declared_metrics import RECONNECTS
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.metrics.outputs import Outputs
from pgsluice.shared.metrics.vitals import Vitals
from pgsluice.shared.pipelines.run_metrics import read_run_samples
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.metrics.worker_metrics import WorkerMetrics
from pgsluice.worker.metrics.worker_watch import WorkerWatch
from pgsluice.worker.positions.lease import Lease
from pgsluice.worker.running import RunningWorker
from pgsluice.worker.sinks.abilities import MeasuredSink
from pgsluice.worker.sinks.sink import Applied


class WorkerVitals:
    """``client`` and ``lease`` are None until the worker has them. ``on_ended`` is told, on any thread, when a part of this
    ended by itself."""

    def __init__(self, settings: WorkerSettings, pulse: Pulse, on_ended: Callable[[PgsluiceError], None]) -> None:
        self.client: Client | None = None
        self.lease: Lease | None = None
        self._sink: MeasuredSink | None = None
        self._settings = settings.metrics
        self._pulse = pulse
        self._on_ended = on_ended
        self._vitals = Vitals({"group": settings.group, "worker": settings.name}, pulse, self._conditions)
        self._outputs = Outputs()
        self._watch: WorkerWatch | None = None
        self.metrics = WorkerMetrics(settings.metrics.tables)
        """What batches tell."""
        for collect in (self.metrics.collect, self._looked_up):
            self._vitals.add(collect)

    def begin(self) -> None:
        """Shows that the worker is starting. Raises UsageError or TerminalError when that is not possible where it is to be."""
        self._outputs = Outputs.begin(self._settings, self._vitals, self._on_ended)

    def follow(self, worker: RunningWorker, applied: Callable[[], Applied]) -> None:
        """Shows what ``worker`` does, from now on, also while it is paused. ``applied`` tells how far it is."""
        self.metrics.follow(worker.registry)
        self._sink = worker.sink if isinstance(worker.sink, MeasuredSink) else None
        self.let_go()
        if self._settings.are_wanted:
            self._watch = WorkerWatch(worker.streams, applied, worker.spark, lambda: self._runs(worker), self._on_ended)

    def _runs(self, worker: RunningWorker) -> list[Sample]:
        client = self.client
        if client is None:
            return []
        return worker.loop.run(read_run_samples(StateBucket(client, GroupNames(worker.settings.group))))

    def let_go(self) -> None:
        """To be called while everything that is looked at is still there."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def close(self) -> None:
        """The last that a worker does: until then it shows that it is ending."""
        self._outputs.close()

    def _looked_up(self) -> list[Sample]:
        watch, client = self._watch, self.client
        reconnects = [] if client is None else [RECONNECTS.at(client.stats["reconnects"], "nats")]
        own = [] if self._sink is None else self._sink.collect()
        return [*reconnects, *([] if watch is None else watch.collect()), *own]

    def _conditions(self) -> dict[str, bool]:
        """What a batch was last refused for does not answer."""
        cause = None if self._pulse.wait is None else self._pulse.wait.cause
        return {
            "nats": self.client is not None and self.client.is_connected and cause is not Cause.NATS,
            "sink": cause is not Cause.TARGET,
            "lease": self.lease is not None and self.lease.is_held,
        }
