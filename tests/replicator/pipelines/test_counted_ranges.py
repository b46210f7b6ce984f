"""The rows of each range are counted where they are planned and where they are read, and the two are compared."""

from __future__ import annotations

import re

import pytest

from pgsluice.replicator.pipelines.pipeline import RunMode
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pipelines.run_records import RunState
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest

NUMBERS = "SELECT n AS id FROM generate_series(1, 1000) n"


def read_all(pipeline: PipelineUnderTest, query: str) -> None:
    pipeline.change(query=query, mode=RunMode.FULL, incremental_key="", batch_rows=100, tasks=1)


def test_a_query_that_gives_other_rows_each_time_it_is_read_never_finishes_a_run(pipeline: PipelineUnderTest) -> None:
    read_all(pipeline, f"{NUMBERS} WHERE random() < 0.5")
    for _ in ("begun", "taken up"):
        with pytest.raises(TerminalError) as raised:
            pipeline.run()
        said = re.search(r"gave (\d+) rows of range \d+, which has (\d+): have it give the same rows", str(raised.value))
        assert said is not None, raised.value
        assert said[1] != said[2]
        assert pipeline.record().runs[-1].state is RunState.FAILED


def test_a_query_that_depends_on_the_time_of_its_session_is_read_as_it_is_there(pipeline: PipelineUnderTest) -> None:
    read_all(pipeline, f"{NUMBERS} WHERE n > (extract(microseconds FROM now())::bigint) % 400")
    run = pipeline.run()
    assert run.state is RunState.FINISHED
    assert run.rows_read == len(pipeline.lines()) >= 600
