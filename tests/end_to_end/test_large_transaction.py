"""A transaction that no memory holds, and a source that gives up on a silent receiver after 10 seconds."""

from __future__ import annotations

import pytest

from benchmarks.scenarios.large_transaction import measure_pgsluice

ROWS = 5_000_000
MEGABYTE = 1_000_000


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(3600)
def test_five_million_rows_of_one_transaction_arrive_in_one_transaction_within_bounded_memory() -> None:
    run = measure_pgsluice(ROWS)  # which raises when source and target differ
    print(run)
    assert run.figures["disconnects"] == 0
    assert run.figures["target_transactions"] == 1
    assert run.usage["replicator"].largest_bytes < 150 * MEGABYTE
