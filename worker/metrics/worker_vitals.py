"""The vitals of a worker, from its start to its end; more metrics are added on the way."""

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
    """``client`` and ``lease`` are unset until the worker has them. ``on_ended`` is called, on any thread, when a part
    of this failed."""

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
        """Metrics of batches."""
        for collect in (self.metrics.collect, self._looked_up):
            self._vitals.add(collect)

    def begin(self) -> None:
        """Exports that the worker is starting. Raises UsageError or TerminalError when that is not possible at the
        configured address."""
        self._outputs = Outputs.begin(self._settings, self._vitals, self._on_ended)

    def follow(self, worker: RunningWorker, applied: Callable[[], Applied]) -> None:
        """Exports the metrics of ``worker``, from now on, also while it is paused. ``applied`` returns its position."""
        self.metrics.follow(worker.registry)
        self._sink = worker.sink if isinstance(worker.sink, MeasuredSink) else None
        self.detach()
        if self._settings.are_wanted:
            self._watch = WorkerWatch(worker.streams, applied, worker.spark, lambda: self._runs(worker), self._on_ended)

    def _runs(self, worker: RunningWorker) -> list[Sample]:
        client = self.client
        if client is None:
            return []
        return worker.loop.run(read_run_samples(StateBucket(client, GroupNames(worker.settings.group))))

    def detach(self) -> None:
        """Detaches from the worker; call it while everything that is read still exists."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def close(self) -> None:
        """Closes the exports, as the last act of a worker: until then it shows that it is ending."""
        self._outputs.close()

    def _looked_up(self) -> list[Sample]:
        watch, client = self._watch, self.client
        reconnects = [] if client is None else [RECONNECTS.at(client.stats["reconnects"], "nats")]
        own = [] if self._sink is None else self._sink.collect()
        return [*reconnects, *([] if watch is None else watch.collect()), *own]

    def _conditions(self) -> dict[str, bool]:
        """Returns the conditions of readiness; a server that refused the last batch is not available."""
        cause = None if self._pulse.wait is None else self._pulse.wait.cause
        return {
            "nats": self.client is not None and self.client.is_connected and cause is not Cause.NATS,
            "sink": cause is not Cause.TARGET,
            "lease": self.lease is not None and self.lease.is_held,
        }
