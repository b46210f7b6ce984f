"""Rows at the target that the query gives no longer are found and deleted, and no others."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgsluice.replicator.pipelines import pipeline_group
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.pipeline_run import run
from pgsluice.replicator.pipelines.query_reader import QueryReader
from pgsluice.replicator.pipelines.range_copy import PublishingRun
from pgsluice.replicator.pipelines.reconciliation import (
    FEW_DELETES,
    NO_RECONCILING,
    Gone,
    Reconciling,
    TargetKeys,
    TargetTableKeys,
    check_comparable,
)
from pgsluice.replicator.pipelines.steps.step import PythonStep
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.errors import Cause, TerminalError, TransientError, UsageError
from pgsluice.shared.pipelines.run_records import RunRecord, RunState, store_pipeline
from pgsluice.shared.wire.snapshot_message import split_snapshot_body
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.servers import Database

ROWS = 20_000


class Reconciled:
    """A pipeline whose rows a worker of this test has applied already; what is to be deleted is read from the stream."""

    def __init__(self, pipeline: PipelineUnderTest, target: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pipeline = pipeline
        self.target = target
        self.looked: list[Gone] = []
        monkeypatch.setattr(pipeline_group, "copied_by_all", self._everything)
        check = Gone.check

        def note(gone: Gone, name: str, *, force: bool) -> None:
            self.looked.append(gone)
            check(gone, name, force=force)

        monkeypatch.setattr(Gone, "check", note)

    @staticmethod
    async def _everything(bucket: StateBucket) -> int:
        return 1 << 62

    def run(self, *, force: bool = False, now: bool = True) -> RunRecord:
        asked = Reconciling(self.target.settings, now, force)
        return run(self.pipeline.settings, self.pipeline.pipeline, full=False, wait=False, reconciling=asked)

    def deleted(self) -> list[bytes]:
        """Lines that the stream says are to be deleted."""
        found: list[bytes] = []
        for body in self.pipeline.bodies():
            if body.headers.mark.deletes == 0 and not body.headers.is_begin:
                found += bytes(split_snapshot_body(body.data)[1]).split(b"\n")[:-1]
        return found


@pytest.fixture
def reconciled(pipeline: PipelineUnderTest, target_database: Database, monkeypatch: pytest.MonkeyPatch) -> Reconciled:
    pipeline.source.execute(f"INSERT INTO t SELECT n, 'v', now() - interval '1 hour' FROM generate_series(1, {ROWS}) n")
    target_database.execute("CREATE TABLE copied (id bigint PRIMARY KEY, v text, updated_at timestamptz)")
    target_database.execute(f"INSERT INTO copied SELECT n, 'v', now() FROM generate_series(1, {ROWS}) n")
    return Reconciled(pipeline, target_database, monkeypatch)


def test_a_hundred_deleted_rows_are_found_while_few_are_read(reconciled: Reconciled) -> None:
    reconciled.pipeline.source.execute("DELETE FROM t WHERE id % 200 = 7")
    reconciled.run()
    assert sorted(reconciled.deleted()) == sorted(b"%d\t\\N\t\\N" % n for n in range(7, ROWS, 200))
    [gone] = reconciled.looked
    assert len(gone.keys) == 100
    assert gone.rows_read < 0.05 * 2 * ROWS
    runs = reconciled.pipeline.record().runs
    assert [(each.state, each.reconciles, each.rows) for each in runs][-1] == (RunState.FINISHED, True, 100)
    assert runs[-1].version > runs[-2].version > 0  # or a search worker would take the rows for newer ones
    checkpoint = reconciled.pipeline.record().checkpoint
    reconciled.target.execute("DELETE FROM copied WHERE id % 200 = 7")
    reconciled.run()
    assert (len(reconciled.deleted()), reconciled.looked[-1].rows_read) == (100, 0)
    assert reconciled.pipeline.record().checkpoint == checkpoint


def test_a_row_that_cannot_be_read_is_not_gone(reconciled: Reconciled) -> None:
    reconciled.pipeline.source.execute("DELETE FROM t WHERE id = 7")
    reconciled.pipeline.change(query="SELECT id, (1 / (id - 13))::text AS v, updated_at FROM t")
    reconciled.run()
    assert reconciled.pipeline.record().runs[0].dead == 1
    assert reconciled.deleted() == [b"7\t\\N\t\\N"]


def test_a_row_that_comes_while_keys_are_compared_is_not_deleted(reconciled: Reconciled, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes back after the source was read, and one that the target got meanwhile is new."""
    source, target = reconciled.pipeline.source, reconciled.target
    source.execute("DELETE FROM t WHERE id IN (5, 6)")
    read = TargetTableKeys.keys_in

    def keys_in(keys: TargetTableKeys, buckets: int, chosen: Any) -> AsyncGenerator[tuple[str, ...]]:
        source.execute("INSERT INTO t VALUES (5, 'back'), (1000001, 'new')")
        target.execute("INSERT INTO copied VALUES (1000001, 'new')")
        return read(keys, buckets, range(buckets))

    monkeypatch.setattr(TargetTableKeys, "keys_in", keys_in)
    reconciled.run()
    assert reconciled.deleted() == [b"6\t\\N\t\\N"]


@pytest.mark.parametrize(
    ("types", "values", "text"),
    [
        (("int", "text"), "n, E'a\\tb\\\\' || n", b"3\ta\\tb\\\\3"),
        (("uuid", "char(5)"), "md5(n::text)::uuid, 'x' || n", None),
        (("numeric", "timestamptz"), "n + 0.50, timestamptz '2026-01-01 00:00:00.5+02' + n * interval '1 s'", None),
        (("text", "boolean"), "'Ä' || n, n % 2 = 0", None),
    ],
)
def test_keys_of_any_type_are_the_same_on_both_sides(
    reconciled: Reconciled, types: tuple[str, str], values: str, text: bytes | None
) -> None:
    definition = f"(a {types[0]}, b {types[1]}, v int, PRIMARY KEY (a, b))"
    reconciled.target.execute(f"DROP TABLE copied; CREATE TABLE copied {definition}")
    reconciled.pipeline.source.execute(f"DROP TABLE t; CREATE TABLE t {definition}")
    for database, name in ((reconciled.pipeline.source, "t"), (reconciled.target, "copied")):
        database.execute(f"INSERT INTO {name} SELECT {values}, n FROM generate_series(1, 100) n")
    reconciled.pipeline.source.execute("DELETE FROM t WHERE v = 3")
    pipeline = reconciled.pipeline
    pipeline.pipeline = replace(pipeline.pipeline, query="SELECT * FROM t", key=("a", "b"), incremental_key="v", overlap="0")
    reconciled.run()
    [line] = reconciled.deleted()
    assert line.endswith(b"\t\\N")
    assert text is None or line == text + b"\t\\N"


def test_keys_are_held_only_as_far_as_they_are_gone(reconciled: Reconciled) -> None:
    """The target has so few rows that all keys of the source are in their buckets."""
    reconciled.target.execute("DELETE FROM copied WHERE id > 5; INSERT INTO copied VALUES (0), (77777), (-1)")
    reconciled.pipeline.source.execute(
        "INSERT INTO t SELECT n, 'v', now() - interval '1 h' FROM generate_series(100000, 200000) n"
    )
    reconciled.run(now=False)
    tracemalloc.start()
    try:
        reconciled.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(reconciled.deleted()) == sorted(b"%d\t\\N\t\\N" % n for n in (0, 77777, -1))
    assert peak < 6_000_000


def test_too_many_deletions_are_refused_until_somebody_says_so(reconciled: Reconciled) -> None:
    reconciled.pipeline.source.execute(f"DELETE FROM t WHERE id <= {ROWS // 5}")
    with pytest.raises(TerminalError, match=rf"would delete {ROWS // 5} of {ROWS} rows.*--force"):
        reconciled.run()
    assert reconciled.deleted() == []
    assert ROWS // 5 > FEW_DELETES
    reconciled.run(force=True)
    assert len(reconciled.deleted()) == ROWS // 5


def test_keys_of_other_types_and_missing_tables_are_refused(reconciled: Reconciled) -> None:
    reconciled.target.execute("ALTER TABLE copied ALTER id TYPE numeric(20, 2)")
    with pytest.raises(UsageError, match=r"numeric.*cannot be compared"):
        reconciled.run()
    reconciled.target.execute("DROP TABLE copied")
    with pytest.raises(UsageError, match="has no table"):
        reconciled.run()


def test_it_is_done_when_it_is_due_and_again_when_it_ended_early(reconciled: Reconciled, monkeypatch: pytest.MonkeyPatch) -> None:
    reconciled.run(now=False)
    assert not reconciled.looked
    reconciled.pipeline.change(reconcile_every_s=3600.0, retries=0)
    reconciled.run(now=False)
    reconciled.run(now=False)
    assert len(reconciled.looked) == 1
    reconciled.pipeline.source.execute("DELETE FROM t WHERE id < 4")
    with monkeypatch.context() as broken:

        async def rows(reader: QueryReader, query: str) -> list[tuple[Any, ...]]:
            raise TransientError("the source went away", "again", Cause.SOURCE)

        broken.setattr(QueryReader, "rows", rows)
        with pytest.raises(TransientError):
            reconciled.run()
    reconciled.run(now=False)
    assert len(reconciled.deleted()) == 3


def test_nothing_is_compared_before_all_is_applied(reconciled: Reconciled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row on its way to the target would look as if the query had given it up, or come after its deletion."""
    seen: list[str] = []
    read = TargetTableKeys.read

    async def copied_by_all(bucket: StateBucket) -> int:
        seen.append("asked")
        return 1 << 62 if len(seen) == 3 else 0

    async def note_read(keys: TargetTableKeys) -> TargetKeys:
        seen.append("read")
        return await read(keys)

    monkeypatch.setattr(pipeline_group, "copied_by_all", copied_by_all)
    monkeypatch.setattr(TargetTableKeys, "read", note_read)
    reconciled.run()
    assert seen == ["asked", "asked", "asked", "read"]


def test_what_is_left_of_deletions_is_looked_for_anew(reconciled: Reconciled, monkeypatch: pytest.MonkeyPatch) -> None:
    reconciled.pipeline.source.execute("DELETE FROM t WHERE id = 7")
    reconciled.pipeline.change(retries=0)
    with monkeypatch.context() as broken:

        async def publish_deletes(run: PublishingRun, keys: object) -> None:
            raise TransientError("the broker went away", "again", Cause.NATS)

        broken.setattr(PublishingRun, "publish_deletes", publish_deletes)
        with pytest.raises(TransientError):
            reconciled.run()
    left = reconciled.pipeline.record().unfinished
    assert left is not None
    assert left.reconciles
    reconciled.run(now=False)
    assert reconciled.deleted() == [b"7\t\\N\t\\N"]
    states = [(each.state, each.reconciles) for each in reconciled.pipeline.record().runs]
    assert states[1:] == [(RunState.ABANDONED, True), (RunState.FINISHED, False), (RunState.FINISHED, True)]


def test_a_clock_that_was_ahead_puts_no_comparison_off(reconciled: Reconciled) -> None:
    reconciled.pipeline.change(reconcile_every_s=3600.0)
    reconciled.run(now=False)
    record = replace(reconciled.pipeline.record(), reconciled_at=(datetime.now(UTC) + timedelta(days=400)).isoformat())
    reconciled.pipeline.asked(lambda bucket: store_pipeline(bucket, record))
    reconciled.run(now=False)
    assert len(reconciled.looked) == 2
    assert datetime.fromisoformat(reconciled.pipeline.record().reconciled_at) < datetime.now(UTC)


def test_a_pipeline_with_steps_is_not_compared() -> None:
    with_steps = Pipeline("p", "p", "SELECT 1 AS id", "public", "t", ("id",), steps=(PythonStep.parse("marts:clean", {}),))
    check_comparable(with_steps, NO_RECONCILING)
    with pytest.raises(UsageError, match="has steps, which may change keys"):
        check_comparable(with_steps, replace(NO_RECONCILING, now=True))
    with pytest.raises(UsageError, match="has steps, which may change keys"):
        check_comparable(replace(with_steps, reconcile_every_s=60.0), NO_RECONCILING)
