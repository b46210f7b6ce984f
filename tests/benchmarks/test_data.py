"""Source and target are compared."""

from __future__ import annotations

import pytest

from benchmarks.data import DifferenceError, require_equal
from tests.servers import Database


def test_a_row_that_differs_fails_a_run(source_database: Database, target_database: Database) -> None:
    for database, value in ((source_database, "a"), (target_database, "b")):
        database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, '{value}')")
    with pytest.raises(DifferenceError, match="table t differs: 1 rows"):
        require_equal(source_database, target_database, "t")
