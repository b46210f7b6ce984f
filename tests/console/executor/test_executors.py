"""``pgsluice schedule`` on real servers: runs by the clock and by request, and whatever dies, each tick is one run."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import psutil

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.pipelines.run_records import RunState
from pgsluice.shared.pipelines.run_requests import AskedBy, RequestState, ask_for_run, cancel, pause, resume
from tests.replicator.pipelines.held_run import ROWS, gate, insert_wide_rows, keys_of, messages
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import wait_until

HELD_ROW = 22
STORED = 1 + (HELD_ROW - 1) // 4
RUN_S = 60.0
"""Long enough for a run on a busy machine."""


def scheduled(pipeline: PipelineUnderTest, nats: NatsServer, directory: Path, *schedule: str) -> PgsluiceProcess:
    keys = keys_of(pipeline, nats, directory, *schedule)
    return PgsluiceProcess("schedule", f"--schedule-log-dir={directory / 'logs'}", config=keys)


def wait_for_run(pipeline: PipelineUnderTest, executor: PgsluiceProcess, state: RunState, attempt: int = 1) -> None:
    def is_there() -> bool:
        assert executor.is_running, executor.log()
        newest = pipeline.record().newest
        return newest is not None and newest.state is state and newest.attempt >= attempt

    wait_until(is_there, deadline_s=RUN_S, what=f"a run that is {state}", interval_s=0.4)


def wait_until_merged(pipeline: PipelineUnderTest, executor: PgsluiceProcess) -> None:
    def is_equal() -> bool:
        assert executor.is_running, executor.log()
        return messages(pipeline) > 0 and pipeline.merged() == pipeline.expected()

    wait_until(is_equal, deadline_s=RUN_S, what="rows as the query gives them", interval_s=0.4)


def wait_until_held(pipeline: PipelineUnderTest) -> None:
    wait_until(lambda: messages(pipeline) >= STORED, deadline_s=RUN_S, what="rows before the gate", interval_s=0.4)


async def made(bucket: StateBucket) -> None:
    await bucket.make(1)


def ask(pipeline: PipelineUnderTest, key: str, *, full: bool = False) -> None:
    pipeline.asked(lambda bucket: ask_for_run(bucket, key, full=full))


def is_done(pipeline: PipelineUnderTest, key: str) -> bool:
    request = pipeline.requests().find(key)
    return request is not None and request.state is RequestState.DONE


def wait_until_settled(pipeline: PipelineUnderTest) -> None:
    wait_until(lambda: not pipeline.requests().open, deadline_s=RUN_S, what="requests that are settled", interval_s=0.4)


def child_of(executor: PgsluiceProcess) -> psutil.Process:
    [child] = psutil.Process(executor.pid).children()
    return child


def test_runs_come_by_the_clock_and_when_they_are_asked_for(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    pipeline.source.execute("INSERT INTO t VALUES (1, 'a', now() - interval '1 hour')")
    with scheduled(pipeline, nats_server, tmp_path, "every: 2s") as executor:
        wait_until_merged(pipeline, executor)
        pipeline.source.execute("INSERT INTO t VALUES (2, 'b')")
        wait_until_merged(pipeline, executor)
        for _ in range(2):
            ask(pipeline, "key-1", full=True)
        wait_until(lambda: is_done(pipeline, "key-1"), deadline_s=RUN_S, what="the run that was asked for", interval_s=0.4)
    asked, runs = pipeline.requests().requests, pipeline.record().runs
    requests = [run.request for run in runs]
    assert len(set(requests)) == len(requests)
    assert {request.id for request in asked} >= set(requests)
    assert next(run for run in runs if run.request == "key-1").is_full
    assert {request.by for request in asked} == {AskedBy.SCHEDULE, AskedBy.PERSON}


def test_whatever_is_killed_the_run_is_taken_up_and_a_paused_one_goes_on_when_people_say(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    insert_wide_rows(pipeline)
    with ExitStack() as held:
        held.enter_context(gate(pipeline, HELD_ROW))
        with scheduled(pipeline, nats_server, tmp_path, "every: 1h") as first:
            wait_until_held(pipeline)
            with scheduled(pipeline, nats_server, tmp_path, "every: 1h") as second:
                child = child_of(first)
                os.kill(first.pid, signal.SIGKILL)  # alone: its run is to end by itself
                assert first.wait() == -signal.SIGKILL  # so that who waits for its lease sees that it is gone
                gone, _ = psutil.wait_procs([child], timeout=10)
                assert gone
                wait_for_run(pipeline, second, RunState.READING, attempt=2)
                child_of(second).kill()
                wait_for_run(pipeline, second, RunState.READING, attempt=3)
                pipeline.asked(pause)
                wait_for_run(pipeline, second, RunState.PAUSED, attempt=3)
                held.close()
                pipeline.asked(resume)
                wait_for_run(pipeline, second, RunState.FINISHED, attempt=4)
                wait_until_settled(pipeline)
    assert len(pipeline.lines()) == ROWS
    assert pipeline.merged() == pipeline.expected()
    [request], [run] = pipeline.requests().requests, pipeline.record().runs
    assert (request.id, request.by, request.run, run.number) == (run.request, AskedBy.SCHEDULE, 1, 1)


def test_a_cancelled_run_is_not_taken_up_and_a_refused_one_says_why(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    insert_wide_rows(pipeline)
    with gate(pipeline, HELD_ROW), scheduled(pipeline, nats_server, tmp_path) as executor:
        pipeline.asked(made)
        ask(pipeline, "a")
        wait_until_held(pipeline)
        pipeline.asked(cancel)
        wait_for_run(pipeline, executor, RunState.CANCELLED)
        pipeline.change(query="SELECT id FROM t")
        keys_of(pipeline, nats_server, tmp_path)
        ask(pipeline, "b")
        wait_until_settled(pipeline)
    cancelled, refused = pipeline.requests().requests
    assert (cancelled.state, cancelled.run) == (RequestState.DONE, 1)
    assert refused.state is RequestState.REFUSED
    assert "no column updated_at" in refused.reason
