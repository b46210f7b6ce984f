"""A pause and a cancel are two facts: neither erases the other, and nothing but ``resume`` or a person's run lifts a pause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pgsluice.console.executor.run_executor import RunExecutor
from pgsluice.console.processes.child_process import Command
from pgsluice.replicator.pipelines.wish_watch import WishWatch
from pgsluice.shared.broker.bucket import Bucket, StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunRecord, RunState, load_pipeline, store_pipeline
from pgsluice.shared.pipelines.run_requests import RunRequest, ask_for_run, cancel, pause, resume
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer


@pytest.fixture
async def bucket(nats_server: NatsServer, group: str) -> AsyncIterator[StateBucket]:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.make(1)
        yield bucket


async def leave_run(bucket: StateBucket, state: RunState, number: int = 1) -> None:
    run = RunRecord(number, state, is_full=False, started_at="2026-01-01T00:00:00+00:00")
    await store_pipeline(bucket, PipelineRecord("ratings", "print", "pipeline-1").with_run(run))


async def end_of(bucket: StateBucket, run: int) -> RunState | None:
    watch = WishWatch(bucket, run)
    await watch.is_to_end()
    return watch.ends_as


@pytest.mark.parametrize("other", [pause, resume])
async def test_no_pause_or_resume_erases_a_cancel_that_the_run_has_not_seen(
    bucket: StateBucket, other: Callable[[Bucket], Awaitable[None]]
) -> None:
    await leave_run(bucket, RunState.READING)
    await cancel(bucket)
    await other(bucket)
    assert await end_of(bucket, 1) is RunState.CANCELLED


async def test_after_a_cancel_a_paused_pipeline_begins_no_run_before_it_is_resumed(bucket: StateBucket) -> None:
    started = list[str]()

    def command(request: RunRequest) -> Command:
        started.append(request.id)
        raise OSError("no process is made here")

    await leave_run(bucket, RunState.PAUSED)
    await pause(bucket)
    await ask_for_run(bucket, "key-1", full=False)
    await cancel(bucket)
    executor = RunExecutor("ratings", bucket, command)
    await executor.look(None)
    assert started == []
    record = await load_pipeline(bucket)
    assert record is not None
    assert [run.state for run in record.runs] == [RunState.CANCELLED]
    await resume(bucket)
    with pytest.raises(OSError, match="no process"):
        await executor.look(None)
    assert started == ["key-1"]
