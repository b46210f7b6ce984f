"""A pause and a cancel are two facts: neither erases the other, and nothing but ``resume`` or a person's run lifts a pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pgsluice.console.executor.run_executor import RunExecutor
from pgsluice.console.processes.child_process import Command
from pgsluice.replicator.pipelines.wish_watch import WishWatch
from pgsluice.shared.broker.bucket import Bucket, StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.pipelines.run_records import PipelineRecord, RunRecord, RunState, load_pipeline, store_pipeline
from pgsluice.shared.pipelines.run_requests import RUN_REQUESTS, RequestState, RunRequest, ask_for_run, cancel, pause, resume
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer
from tests.shared.broker.turns import Actor, History, SharedBucket


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


async def test_a_cancel_that_comes_late_leaves_the_cancel_of_a_later_run(
    nats_server: NatsServer, group: str, bucket: StateBucket
) -> None:
    async with connected(nats_server.settings(), "test") as client:
        slow = Actor("slow", lambda *change: True)
        reading = SharedBucket(client, GroupNames(group), slow, History(lambda key: None))
        await leave_run(bucket, RunState.READING)
        slow.start(cancel_of(reading))
        await slow.go_on()  # to its look at the run
        await slow.go_on()  # to its look at wishes
        await leave_run(bucket, RunState.READING, 2)
        await cancel(bucket)
        await pause(bucket)
        while await slow.go_on():
            pass
    assert await end_of(bucket, 2) is RunState.CANCELLED


async def test_an_executor_that_is_about_to_start_a_run_sees_a_pause(
    nats_server: NatsServer, group: str, bucket: StateBucket
) -> None:
    started = list[str]()

    def command(request: RunRequest) -> Command:
        started.append(request.id)
        raise OSError("no process is made here")

    async with connected(nats_server.settings(), "test") as client:
        slow = Actor("slow", lambda *change: True)
        reading = SharedBucket(client, GroupNames(group), slow, History(lambda key: None))
        await ask_for_run(bucket, "key-1", full=False)
        slow.start(RunExecutor("ratings", reading, command).look(None))
        while "pipeline" not in slow.seen:
            assert await slow.go_on()
        await pause(bucket)
        while await slow.go_on():
            pass
    assert started == []
    request = (await RUN_REQUESTS.load(bucket)).find("key-1")
    assert request is not None
    assert request.state is RequestState.REQUESTED


async def cancel_of(bucket: StateBucket) -> None:
    await cancel(bucket)
