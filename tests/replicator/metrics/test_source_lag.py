"""How far the stream is behind its source, by what the replicator heard last."""

from __future__ import annotations

import pytest

from pgsluice.replicator.metrics.replicator_metrics import source_lag_s
from pgsluice.replicator.progress import PublishedCounts
from pgsluice.shared.wire.position import POSTGRES_EPOCH

NOW = POSTGRES_EPOCH.timestamp() + 1000.0


@pytest.mark.parametrize(
    ("committed_s_ago", "reached_s_ago", "lag_s"),
    [
        (None, None, None),
        (7.0, None, 7.0),
        (-1.0, None, 0.0),  # the source's clock is ahead
        (500.0, 5.0, 0.0),
        (500.0, 40.0, 40.0),  # it was at the end, and has been silent since
        (None, 5.0, 0.0),
    ],
)
def test_the_lag_is_the_age_of_the_last_commit_unless_there_is_nothing_after_it(
    committed_s_ago: float | None, reached_s_ago: float | None, lag_s: float | None
) -> None:
    counts = PublishedCounts(is_at_end=reached_s_ago is not None, reached_at=NOW - (reached_s_ago or 0.0))
    if committed_s_ago is not None:
        counts.committed_at = round((1000.0 - committed_s_ago) * 1e6)
    assert source_lag_s(counts, NOW) == (None if lag_s is None else pytest.approx(lag_s))
