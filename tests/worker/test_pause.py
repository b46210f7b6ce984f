"""A worker obeys what is desired of it, whoever started it: it rests between batches with its lease held, goes on where it was,
and stays stopped."""

from __future__ import annotations

import pytest

from pgsluice.shared.broker.unit_records import Desired
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.process.pulse import Activity
from tests.waiting import wait_until
from tests.worker.published_stream import ids_in
from tests.worker.stage import LONGEST_S, AwaySink, SlowSink, Sqlite, Stage


def wait_for_ids(stage: Stage, last: int) -> None:
    wait_until(lambda: ids_in(stage.path) == [*range(1, last + 1)], deadline_s=LONGEST_S, what=f"{last} changes")


def wait_for_pause(stage: Stage, revision: int) -> None:
    """Acknowledged, and in force."""
    stage.wait_for_process(lambda told: told.acknowledged == revision and told.activity is Activity.PAUSED, "the pause")


def test_a_pause_lets_the_batch_in_hand_finish_and_keeps_the_lease(stage: Stage) -> None:
    stage.publish(3)
    sinks: list[SlowSink] = []

    def new_sink(settings: WorkerSettings) -> SlowSink:
        sinks.append(SlowSink(settings, stage.path))
        return sinks[-1]

    stage.start(new_sink)
    wait_until(sinks[0].is_committing.is_set, deadline_s=LONGEST_S, what="a commit")
    revision = stage.desire(Desired.PAUSED)
    stage.wait_for_process(lambda told: told.acknowledged == revision, "the acknowledgement")
    told = stage.process()
    assert told is not None
    assert told.activity is Activity.WORKING
    sinks[0].may_commit.set()
    wait_for_pause(stage, revision)
    assert ids_in(stage.path) == [1, 2, 3]
    assert stage.is_leased

    stage.publish_more(4, 6)
    stage.wait_for_reports()
    assert ids_in(stage.path) == [1, 2, 3]
    stage.desire(Desired.RUNNING)
    wait_until(lambda: len(sinks) == 2, deadline_s=LONGEST_S, what="another sink")
    sinks[1].may_commit.set()
    wait_for_ids(stage, 6)
    told = stage.wait_for_process(lambda told: told.activity is Activity.WORKING, "work")
    assert told.exit_code is None
    stage.stop()
    assert not stage.is_leased


def test_a_worker_that_starts_paused_takes_its_lease_and_rests(stage: Stage) -> None:
    stage.publish(3)
    revision = stage.desire(Desired.PAUSED)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    wait_for_pause(stage, revision)
    assert stage.is_leased
    assert not stage.path.exists()
    stage.desire(Desired.RUNNING)
    stage.wait_for_log("reading")
    wait_for_ids(stage, 3)
    stage.stop()


def test_a_worker_is_paused_while_its_sink_is_away_and_stops_while_it_rests(stage: Stage) -> None:
    stage.publish(1)
    stage.start(lambda settings: AwaySink(settings, stage.path))
    stage.wait_for_log("the sink cannot be opened, trying again")
    wait_for_pause(stage, stage.desire(Desired.PAUSED))
    told = stage.process()
    assert told is not None
    assert told.wait is None
    stage.stop()
    assert not stage.is_leased
    told = stage.process()
    assert told is not None
    assert told.exit_code == 0


def test_a_worker_that_is_to_be_stopped_ends_and_ends_again_at_once(stage: Stage) -> None:
    stage.publish(3)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("reading")
    wait_for_ids(stage, 3)
    revision = stage.desire(Desired.STOPPED)
    stage.finish()
    told = stage.process()
    assert told is not None
    assert (told.exit_code, told.acknowledged, told.activity) == (0, revision, Activity.ENDING)

    stage.publish_more(4, 6)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.finish()
    assert ids_in(stage.path) == [1, 2, 3]
    assert not stage.is_leased

    stage.desire(Desired.RUNNING)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    wait_for_ids(stage, 6)
    stage.stop()


@pytest.mark.long  # tests/end_to_end/test_pauses.py has pauses in a busy group
def test_many_short_pauses_lose_nothing(stage: Stage) -> None:
    stage.publish(3)
    stage.start(lambda settings: Sqlite(settings, stage.path))
    stage.wait_for_log("reading")
    last = 3
    for _ in range(5):
        wait_for_pause(stage, stage.desire(Desired.PAUSED))
        stage.publish_more(last + 1, last + 3)
        last += 3
        stage.desire(Desired.RUNNING)
        wait_for_ids(stage, last)
    stage.stop()
