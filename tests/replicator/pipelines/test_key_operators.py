"""Rows are cut, read and compared in the order of their key's own type, wherever its operators are."""

from __future__ import annotations

import pytest

from pgsluice.replicator.pipelines.pipeline import RunMode
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest

TYPES = """
CREATE SCHEMA elsewhere;
CREATE EXTENSION citext SCHEMA elsewhere;
CREATE EXTENSION ltree SCHEMA elsewhere;
CREATE DOMAIN word AS elsewhere.citext;
CREATE DOMAIN short_word AS word CHECK (length(VALUE) < 10);
"""


@pytest.mark.parametrize(
    "kind", ["elsewhere.citext", "word", "short_word", "elsewhere.ltree", "elsewhere.citext[]", "varchar(9)"]
)
def test_a_key_whose_operators_are_outside_the_search_path_brings_every_row(pipeline: PipelineUnderTest, kind: str) -> None:
    texts = ["{a}", "{B}", "{c}", "{D}"] if kind.endswith("[]") else ["a", "B", "c", "D"]
    values = ", ".join(f"('{text}')" for text in texts)
    pipeline.source.execute(f"{TYPES} CREATE TABLE words (k {kind} PRIMARY KEY); INSERT INTO words VALUES {values}")
    pipeline.change(query="SELECT k FROM words", key=("k",), mode=RunMode.FULL, incremental_key="", batch_rows=2, tasks=1)
    assert pipeline.run().rows_read == 4
    assert pipeline.merged() == pipeline.expected()
    assert len(pipeline.lines()) == 4


def test_columns_whose_operators_are_in_different_schemas_order_rows_together(pipeline: PipelineUnderTest) -> None:
    pipeline.source.execute(f"""
        {TYPES} CREATE TABLE words (updated_at timestamptz, n int, k word, PRIMARY KEY (n, k));
        INSERT INTO words SELECT now() - interval '1 hour', n, k FROM generate_series(1, 3) n, unnest('{{a,B,c,D}}'::word[]) k
    """)
    query = "SELECT n || k AS both, updated_at, n, k FROM words"
    pipeline.change(query=query, key=("k", "n"), batch_rows=2, tasks=1)
    assert pipeline.run().rows_read == 12
    assert pipeline.merged() == pipeline.expected()
    assert len(pipeline.lines()) == 12
    pipeline.source.execute("INSERT INTO words SELECT now(), 4, k FROM unnest('{a,B,c,D}'::word[]) k")
    assert pipeline.run().rows_read == 4
    assert pipeline.merged() == pipeline.expected()
