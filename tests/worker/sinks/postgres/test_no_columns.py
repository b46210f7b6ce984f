"""A table without columns has rows all the same, as PostgreSQL's own replication has it."""

from __future__ import annotations

import pytest

from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.batch import apply_copied
from pgsluice.testing.changes_builder import copied, delete, insert, table
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from tests.worker.sinks.postgres.conftest import WITH_AND_WITHOUT_STAGES, Target

EMPTY = table("public.nocol", key=(), identity=ReplicaIdentity.FULL)


def rows(target: Target) -> int:
    [(count,)] = target.rows("SELECT count(*) FROM nocol")
    return int(count)


@WITH_AND_WITHOUT_STAGES
def test_rows_without_columns_are_copied_inserted_and_deleted(target: Target) -> None:
    apply_copied(target.sink, [[copied(1, EMPTY, (), (), ())]])
    assert rows(target) == 3
    target.apply(insert(EMPTY), insert(EMPTY))
    assert rows(target) == 5
    target.apply(delete(EMPTY), insert(EMPTY), delete(EMPTY), delete(EMPTY))
    assert rows(target) == 3


@WITH_AND_WITHOUT_STAGES
def test_a_target_with_more_columns_takes_their_defaults(target: Target) -> None:
    target.execute("CREATE TABLE nocol (at text DEFAULT 'here')")
    target.apply(insert(EMPTY), insert(EMPTY))
    target.apply(delete(EMPTY), insert(EMPTY), insert(EMPTY))
    assert target.table("public", "nocol") == [("here",)] * 3


@WITH_AND_WITHOUT_STAGES
def test_a_refused_row_without_columns_is_named(target: Target) -> None:
    target.execute("CREATE TABLE nocol (at text DEFAULT 'here' CHECK (at <> 'here'))")
    with pytest.raises(RejectedChanges) as caught:
        target.apply(insert(EMPTY), insert(EMPTY))
    assert caught.value.rejections
