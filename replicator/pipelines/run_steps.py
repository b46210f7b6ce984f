"""The steps of a run: bound to its query's columns before a row is read."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.steps.step import has_sql
from pgsluice.replicator.snapshot.copy_task_messages import RowSteps
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.pipeline_settings import PipelineSettings
from pgsluice.shared.wire.table import Table


async def bound(
    settings: PipelineSettings, pipeline: Pipeline, table: Table, closing: AsyncExitStack
) -> tuple[RowSteps | None, Table]:
    """Returns the steps, and the table that they fill; Arrow is loaded only where there are some, Spark where one is
    SQL."""
    if not pipeline.steps:
        return None, table
    from pgsluice.replicator.pipelines.steps.block_steps import bind_steps

    engine = None
    if has_sql(pipeline.steps):
        from pgsluice.replicator.pipelines.steps.sql_engine import SqlEngine

        engine = SqlEngine(settings.spark)
        closing.push_async_callback(asyncio.to_thread, engine.close)
    steps, made = await asyncio.to_thread(bind_steps, pipeline.steps, pipeline.key, table, engine)
    lacking = [name for name in pipeline.deleted_by if name not in [column.name for column in made.columns]]
    if lacking:
        raise UsageError(
            f"the steps of pipeline '{pipeline.name}' give no column {lacking[0]}", "keep the one that deletes names"
        )
    return steps, made
