"""When a pipeline runs by itself: what people write of it, not yet reckoned out (``console.executor.ticks`` does that)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class OverlapPolicy(enum.StrEnum):
    """What becomes of a tick while a run is in hand."""

    SKIP = "skip"
    """It is recorded, and begins no run."""
    QUEUE = "queue"
    """Its run begins after that one; more ticks until then are skipped."""


@dataclass(frozen=True, slots=True)
class RunSchedule:
    """Either ``cron``, five fields that ``time_zone`` gives their meaning, or ``every_s`` from one tick to the next."""

    cron: str = ""
    every_s: float = 0.0
    time_zone: str = "UTC"
    overlap: OverlapPolicy = OverlapPolicy.SKIP

    @property
    def text(self) -> str:
        """Tells schedules apart whose ticks are others."""
        return f"{self.cron} {self.time_zone}" if self.cron else f"every {self.every_s:g} s"
