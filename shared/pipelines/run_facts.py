"""The state of a pipeline's runs, for alerts and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.pipelines.run_records import PipelineRecord, load_pipeline
from pgsluice.shared.pipelines.run_requests import RUN_REQUESTS, AskedBy, RunRequests


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of a SQL pipeline. ``tick_age_s`` is the seconds since its next tick was due, negative before it, None
    without a schedule."""

    record: PipelineRecord | None
    requests: RunRequests
    tick_age_s: float | None

    @property
    def pipeline(self) -> str:
        """The pipeline's name, known from its first run on."""
        return "pipeline" if self.record is None else self.record.pipeline

    @property
    def has_ticks(self) -> bool:
        """Returns whether the schedule applies now: the pipeline is not paused."""
        return not self.requests.paused and self.tick_age_s is not None

    @property
    def overtaken(self) -> tuple[str, ...]:
        """Ticks whose runs were not done when another one came, the oldest first."""
        open_ticks = (each.id for each in self.requests.open if each.by is AskedBy.SCHEDULE)
        return tuple(sorted(tick for tick in open_ticks if tick < self.requests.ticks.last))


async def read_run_facts(bucket: StateBucket) -> RunFacts | None:
    """Returns None in a group that is no SQL pipeline's. Raises TransientError when NATS does not answer, TerminalError
    when a record is malformed."""
    record, requests = await load_pipeline(bucket), await RUN_REQUESTS.load(bucket)
    if record is None and not requests.ticks.schedule:
        return None
    following = requests.ticks.next
    age_s = (datetime.now(UTC) - datetime.fromisoformat(following)).total_seconds() if following else None
    return RunFacts(record, requests, age_s)
