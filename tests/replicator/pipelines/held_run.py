"""A real run that waits at a row of the test's choice, so that it can be killed, paused or cancelled right there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgsluice.replicator.pipelines.steps.step import SqlStep
from tests.end_to_end.group_under_test import configuration
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import wait_until

ROWS = 40
ROW_BYTES = 70_000  # four rows make a message
GATE_LOCK = 42
QUERY = "SELECT id, CASE WHEN id IN (SELECT closed_at FROM gate) THEN pass_gate() || v ELSE v END AS v, updated_at FROM t"


@contextmanager
def gate(pipeline: PipelineUnderTest, *rows: int) -> Iterator[Callable[[], None]]:
    """Whoever reads one of these rows waits; what it gives opens the gate before its end."""
    # A volatile function would be called wherever the query is looked at, and any function for all rows before they are sorted.
    pipeline.source.execute(
        f"CREATE INDEX ON t (updated_at, id); ALTER DATABASE {pipeline.source.dbname} SET enable_sort = off;"
        f"ALTER DATABASE {pipeline.source.dbname} SET enable_seqscan = off;"
        f"CREATE TABLE gate (closed_at int); INSERT INTO gate VALUES {', '.join(f'({row})' for row in rows)};"
        "CREATE FUNCTION pass_gate() RETURNS text LANGUAGE plpgsql STABLE AS"
        f" $$BEGIN PERFORM pg_advisory_xact_lock_shared({GATE_LOCK}); RETURN ''; END$$"
    )
    with pipeline.source.connect() as holder:
        holder.execute(f"SELECT pg_advisory_lock({GATE_LOCK})")

        def open_gate() -> None:
            holder.execute(f"SELECT pg_advisory_unlock({GATE_LOCK})")

        yield open_gate


def insert_wide_rows(pipeline: PipelineUnderTest) -> None:
    """ROWS rows, and the query that can be held at one."""
    pipeline.source.execute(
        f"INSERT INTO t SELECT n, repeat('x', {ROW_BYTES}), now() - interval '1 hour' + n * interval '1 s'"
        f" FROM generate_series(1, {ROWS}) n"
    )
    pipeline.change(query=QUERY)


def keys_of(pipeline: PipelineUnderTest, nats: NatsServer, directory: Path, *more: str) -> dict[str, Any]:
    """The configuration of commands about the pipeline, of which the file says ``more``."""
    file = directory / "pipelines.yaml"
    file.write_text(
        f'pipelines:\n  ratings:\n    group: {pipeline.pipeline.group}\n    query: "{pipeline.pipeline.query}"\n'
        "    target: public.copied\n    key: [id]\n    mode: incremental\n    incremental-key: updated_at\n"
        + "".join(f"    {line}\n" for line in (*_sql_steps(pipeline), *more))
    )
    return configuration(pipeline.pipeline.group, pipeline.source, None, nats, **{"pipelines-config": str(file)})


def _sql_steps(pipeline: PipelineUnderTest) -> list[str]:
    steps = [{"sql": step.text} for step in pipeline.pipeline.steps if isinstance(step, SqlStep)]
    return [f"steps: {json.dumps(steps)}"] if steps else []


@contextmanager
def held_at(pipeline: PipelineUnderTest, nats: NatsServer, directory: Path, row: int) -> Iterator[PgsluiceProcess]:
    """A run that has stored what comes before the row, and waits."""
    with gate(pipeline, row), _held_after(pipeline, keys_of(pipeline, nats, directory), 1 + (row - 1) // 4) as process:
        yield process


@contextmanager
def held_in_ranges(pipeline: PipelineUnderTest, keys: dict[str, Any]) -> Iterator[PgsluiceProcess]:
    """A run of four ranges of ten rows, whose tasks wait in the first two: each after a message of four rows."""
    with gate(pipeline, 6, 16), _held_after(pipeline, keys, 3) as process:
        yield process


@contextmanager
def _held_after(pipeline: PipelineUnderTest, keys: dict[str, Any], stored: int) -> Iterator[PgsluiceProcess]:
    with PgsluiceProcess("run", "ratings", config=keys) as process:
        wait_until(lambda: not process.is_running or messages(pipeline) >= stored, deadline_s=60.0, what="rows", interval_s=0.1)
        assert process.is_running, process.log()
        yield process


def messages(pipeline: PipelineUnderTest) -> int:
    try:
        return len(pipeline.bodies())
    except AssertionError:  # there is no stream yet
        return 0
