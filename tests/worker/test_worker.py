"""A worker that is asked to stop ends well in whatever state it is: with real Spark, a real broker and a small sink."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import Cause, TaskEndedError
from pgsluice.shared.process.pulse import Activity
from pgsluice.worker.positions.lease import Lease
from pgsluice.worker.sinks.webhook.sink import WebhookSink
from tests.servers.http_server import Answer, HttpServer
from tests.waiting import wait_until
from tests.worker.published_stream import ids_in
from tests.worker.sinks.webhook.sinks import webhook_settings
from tests.worker.stage import LONGEST_S, AwaySink, SlowSink, Sqlite, Stage


def test_a_worker_stops_while_it_waits_for_the_lease_and_leaves_it_to_its_holder(stage: Stage) -> None:
    stage.publish(1)
    holder = Lease(stage.bucket, "w")
    stage.loop.run(holder.acquire(lambda error: None))
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("waiting for the lease, which another process holds")
    stage.stop()
    assert stage.is_leased
    assert not stage.path.exists()
    stage.loop.run(holder.release())


def test_a_worker_whose_sink_tries_again_by_itself_says_what_it_waits_for(stage: Stage) -> None:
    stage.publish(1)
    with HttpServer() as receiver:
        receiver.answer = lambda request: Answer(429, {"Retry-After": "3"})
        stage.start(lambda settings: WebhookSink(settings, webhook_settings(receiver)))
        told = stage.wait_for_process(lambda told: told.wait is not None and told.wait.cause is Cause.THROTTLED, "the wait")
        assert told.activity is Activity.WORKING
        assert told.wait is not None
        assert told.wait.next_attempt_at
        receiver.answer = lambda request: Answer()
        stage.stop()


def test_a_worker_stops_while_its_sink_is_away_and_gives_the_lease_back(stage: Stage) -> None:
    stage.publish(1)
    stage.start(lambda settings: AwaySink(settings, stage.path))
    stage.wait_for_log("the sink cannot be opened, trying again")
    assert stage.is_leased
    stage.stop()
    assert not stage.is_leased


def test_a_worker_that_is_stopped_in_a_batch_finishes_it(stage: Stage) -> None:
    stage.publish(3)
    sinks: list[SlowSink] = []

    def new_sink(settings: WorkerSettings) -> SlowSink:
        sinks.append(SlowSink(settings, stage.path))
        return sinks[-1]

    stage.start(new_sink)
    wait_until(sinks[0].is_committing.is_set, deadline_s=LONGEST_S, what="a commit")
    stage.worker.request_stop()
    sinks[0].may_commit.set()
    stage.stop()
    assert ids_in(stage.path) == [1, 2, 3]
    assert not stage.is_leased


def test_a_worker_stops_between_batches(stage: Stage) -> None:
    stage.publish(3)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("reading")
    wait_until(lambda: ids_in(stage.path) == [1, 2, 3], deadline_s=LONGEST_S, what="the batch")
    stage.stop()
    assert not stage.is_leased


def test_a_worker_with_a_target_ends_by_itself(stage: Stage) -> None:
    stage.publish(3)
    stage.settings = replace(stage.settings, until_sequence="current")
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.finish()
    assert ids_in(stage.path) == [1, 2, 3]
    assert not stage.is_leased


@pytest.mark.parametrize(
    "task",
    [
        "the renewal of the lease",
        "the report of the worker's progress",
        pytest.param("the record of the process", marks=pytest.mark.long),
        pytest.param("the check of the desired state", marks=pytest.mark.long),
    ],
)
def test_a_worker_of_which_a_task_died_without_a_word_ends_by_itself(stage: Stage, task: str) -> None:
    """As a call of the NATS client does that is cancelled with its connection."""
    stage.publish(1)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("reading")
    loop = stage.worker._loop.loop
    [victim] = [each for each in asyncio.all_tasks(loop) if each.get_name() == task]
    loop.call_soon_threadsafe(victim.cancel)
    with pytest.raises(TaskEndedError, match=f"{task} ended unexpectedly") as ended:
        stage.finish()
    assert ended.value.exit_code == 75
    assert not stage.is_leased
