"""The vitals of a process: its metrics, its health and its readiness, for every export.

A process makes one, and adds facts as it learns them: before its lease is held it can report that it is starting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pgsluice.shared.errors import Cause
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.health import Verdict, judge_health, judge_readiness, waited_s
from pgsluice.shared.metrics.metric import Collect, Sample
from pgsluice.shared.process.program_version import program_version
from pgsluice.shared.process.pulse import Activity, Pulse

Conditions = Callable[[], Mapping[str, bool]]
"""Conditions of a process's readiness, by name."""


class Vitals:
    """Used by the threads that show it; ``add`` and ``conditions`` may be called, or set, by any."""

    def __init__(self, labels: Mapping[str, str], pulse: Pulse, conditions: Conditions) -> None:
        self.labels = dict(labels)
        """Labels of all metrics."""
        self.pulse = pulse
        self._conditions = conditions
        self._collectors: list[Collect] = []

    def add(self, collect: Collect) -> None:
        """Adds the samples of ``collect`` from now on."""
        self._collectors = [*self._collectors, collect]

    def samples(self) -> list[Sample]:
        return [sample for collect in (self._process, *self._collectors) for sample in collect()]

    def health(self) -> Verdict:
        return judge_health(self.pulse)

    def readiness(self) -> Verdict:
        return judge_readiness(self.pulse, self._conditions())

    def _process(self) -> list[Sample]:
        pulse, wait = self.pulse, self.pulse.wait
        return [
            metrics.BUILD_INFO.at(1.0, program_version()),
            *metrics.ACTIVITY.one_of(pulse.activity, Activity),
            metrics.LAST_PROGRESS.at(time.time() - pulse.age_s),
            *metrics.WAITING.one_of("" if wait is None else wait.cause, Cause),
            metrics.WAITING_SECONDS.at(0.0 if wait is None else waited_s(wait)),
        ]
