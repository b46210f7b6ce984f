"""One module per scenario, each with its ``SCENARIO``."""

from __future__ import annotations

from benchmarks.measurement import Scenario
from benchmarks.scenarios import (
    added_table,
    backlog,
    beside_debezium,
    beside_pgsync,
    cold_start,
    endurance,
    idle,
    initial_copy,
    kafka_sink,
    kafka_source,
    large_transaction,
    latency,
    many_groups,
    memory,
    metrics_cost,
    nats_sink,
    rules,
    saturation,
    schema_copy,
    search,
    sql_pipeline,
    tables,
    tpcb,
    tracked_definitions,
    updates,
    widths,
)

SCENARIOS: dict[str, Scenario] = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        backlog,
        tpcb,
        updates,
        initial_copy,
        schema_copy,
        latency,
        saturation,
        added_table,
        cold_start,
        idle,
        memory,
        many_groups,
        large_transaction,
        rules,
        tracked_definitions,
        metrics_cost,
        nats_sink,
        kafka_sink,
        kafka_source,
        beside_debezium,
        search,
        beside_pgsync,
        sql_pipeline,
        widths,
        tables,
        endurance,
    )
}
