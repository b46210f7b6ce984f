"""How often a run is taken up, and after which failures."""

from __future__ import annotations

import pytest

from pgsluice.replicator.pipelines import run_retries
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.run_retries import tried
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.process.retrying import Pauses


@pytest.mark.parametrize(("cause", "calls"), [(Cause.SOURCE, 3), (Cause.LOCK, 1)])
async def test_a_run_is_taken_up_as_often_as_its_pipeline_says_and_never_beside_another_one(
    monkeypatch: pytest.MonkeyPatch, cause: Cause, calls: int
) -> None:
    monkeypatch.setattr(run_retries, "PAUSES", Pauses(0.001, 0.001))
    made = list[int]()

    async def run() -> None:
        made.append(1)
        raise TransientError("the source is away", "wait", cause)

    with pytest.raises(TransientError, match="the source is away"):
        await tried(Pipeline("p", "g", "SELECT", "public", "t", ("id",), retries=2), run)
    assert len(made) == calls
