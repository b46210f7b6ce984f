"""The schedule of a pipeline, as configured; ``console.executor.ticks`` computes its times."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class OverlapPolicy(enum.StrEnum):
    """The treatment of a tick while a run is active."""

    SKIP = "skip"
    """The tick is recorded, and begins no run."""
    QUEUE = "queue"
    """The tick's run begins after the active one; more ticks until then are skipped."""


@dataclass(frozen=True, slots=True)
class RunSchedule:
    """Either ``cron``, five fields that ``time_zone`` gives their meaning, or ``every_s`` from one tick to the next."""

    cron: str = ""
    every_s: float = 0.0
    time_zone: str = "UTC"
    overlap: OverlapPolicy = OverlapPolicy.SKIP

    @property
    def text(self) -> str:
        """Returns a text that differs for schedules with different ticks."""
        return f"{self.cron} {self.time_zone}" if self.cron else f"every {self.every_s:g} s"
