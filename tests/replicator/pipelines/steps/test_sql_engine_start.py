"""A JVM for SQL steps that does not start, or not any more."""

from __future__ import annotations

import pytest

from pgsluice.replicator.pipelines.steps.sql_engine import SqlEngine
from pgsluice.shared.errors import TransientError

STATEMENT = "SELECT id FROM rows"


def test_each_statement_that_is_asked_about_says_that_spark_did_not_start() -> None:
    engine, other = (SqlEngine({"spark.driver.memory": "1k"}) for _ in range(2))
    try:
        for each in (engine, engine, other):
            with pytest.raises(TransientError, match="Spark did not start"):
                each.check(STATEMENT)
    finally:
        engine.close()
        other.close()


def test_an_engine_that_was_closed_says_so() -> None:
    engine = SqlEngine({})
    engine.close()
    with pytest.raises(TransientError, match="Spark's JVM ended"):
        engine.check(STATEMENT)
