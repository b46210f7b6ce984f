"""Tables are copied while others go on: two lanes over one stream, in a random model with real streams, planner and tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.wire.table import Table
from pgsluice.worker.event_loop import EventLoopThread
from tests.servers import NatsServer
from tests.worker.batches.lanes_model import ADDED, run_group

RUNS = 12
LONG_RUNS = 1000
LATE_SEEDS = (40, 48)
"""With them a planner that reads the ledger first fails; with those between them it does not."""


def run_groups(server: NatsServer, group: str, seeds: Iterable[int], *, two_lanes: bool = True, late: Table | None = None) -> int:
    """How often a cohort joined the others."""
    loop = EventLoopThread("test-lanes")
    client = loop.run(connect(server.settings(), "test"))
    try:
        settings = server.settings()
        return sum(run_group(loop, client, settings, f"{group}_{seed}", seed, two_lanes=two_lanes, late=late) for seed in seeds)
    finally:
        loop.run(disconnect(client))
        loop.close()


def test_tables_that_are_copied_join_the_others_without_a_gap_or_a_doubled_change(nats_server: NatsServer, group: str) -> None:
    assert run_groups(nats_server, group, range(RUNS)) > RUNS // 2


def test_a_table_that_is_taken_up_right_after_the_ledger_was_read_loses_no_change(nats_server: NatsServer, group: str) -> None:
    """What holds because the end of the stream is read before the ledger."""
    run_groups(nats_server, group, LATE_SEEDS, late=ADDED[1])


def test_a_sink_without_lanes_has_all_tables_wait(nats_server: NatsServer, group: str) -> None:
    assert run_groups(nats_server, group, range(RUNS // 5), two_lanes=False) == 0


@pytest.mark.long
def test_the_same_many_times(nats_server: NatsServer, group: str) -> None:
    first = int(os.environ.get("LANES_SEED", "1000"))
    assert run_groups(nats_server, group, range(first, first + LONG_RUNS)) > LONG_RUNS // 2
