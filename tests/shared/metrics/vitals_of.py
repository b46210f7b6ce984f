"""Vitals of a process that is not there: a pulse in any condition, and samples of every kind."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from pgsluice.shared.errors import Cause
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.metric import SECONDS, Histogram, Sample
from pgsluice.shared.metrics.vitals import Vitals
from pgsluice.shared.process.pulse import Activity, Pulse, Wait

MOVED_S = 0.0
STILL_S = 61.0


def pulse_of(activity: Activity, since_s: float = MOVED_S, *, idle: bool = False, waits_for: Cause | None = None) -> Pulse:
    """One that moved last ``since_s`` ago, and has waited for as long."""
    pulse = Pulse()
    pulse.activity = activity
    pulse.progressed(idle=idle)
    pulse.progressed_at = time.monotonic() - since_s
    if waits_for is not None:
        pulse.wait = Wait(waits_for, f"the {waits_for} is away", datetime.now(UTC) - timedelta(seconds=since_s))
    return pulse


def vitals_of(pulse: Pulse, **conditions: bool) -> Vitals:
    """With a histogram, a counter with a label and a gauge of its own."""
    vitals = Vitals({"group": "orders", "worker": "pg"}, pulse, lambda: conditions)
    vitals.add(_samples)
    return vitals


def _samples() -> list[Sample]:
    histogram = Histogram(SECONDS)
    for seconds in (0.0005, 0.3, 0.3, 9000.0):
        histogram.observe(seconds)
    return [
        metrics.BATCH_SECONDS.of(histogram.read(), "write"),
        metrics.APPLIED_CHANGES.at(7, 'public."odd"\\name', "insert"),
        metrics.APPLY_LAG_BYTES.at(1234),
    ]
