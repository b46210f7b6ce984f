"""One module per scenario, each with its ``SCENARIO``."""

from __future__ import annotations

from benchmarks.measurement import Scenario
from benchmarks.scenarios import backlog, cold_start, large_transaction, latency

SCENARIOS: dict[str, Scenario] = {
    module.SCENARIO.name: module.SCENARIO for module in (backlog, latency, cold_start, large_transaction)
}
