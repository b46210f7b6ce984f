"""A run in hand ends between two messages when people wish it, also while the source gives no row, and goes on when they wish."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pgsluice.replicator.pipelines.wish_watch import WishWatch
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pipelines.run_records import RunState
from pgsluice.shared.wire.names import GroupNames
from tests.replicator.pipelines.held_run import ROWS, held_at, held_in_ranges, insert_wide_rows, keys_of
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.servers import NatsServer, PgsluiceProcess

ENDED_BY_PEOPLE = 70
RUN_DEADLINE_S = 120.0
IN_RANGES = ("batch-rows: 10", "tasks: 2")


def wish(pipeline: PipelineUnderTest, nats: NatsServer, directory: Path, verb: str, *more: str) -> str:
    """Takes no source: it may be away, or known to another machine alone."""
    keys = keys_of(pipeline, nats, directory, *more)
    with PgsluiceProcess(
        "runs", verb, "ratings", config={name: keys[name] for name in ("nats-url", "pipelines-config")}
    ) as command:
        assert command.wait() == 0, command.log()
        return command.stdout()


def ids(pipeline: PipelineUnderTest) -> list[int]:
    """Of the rows in the stream, in its order."""
    return [int(line.split(b"\t")[0]) for line in pipeline.lines()]


def states(pipeline: PipelineUnderTest) -> list[RunState]:
    return [run.state for run in pipeline.record().runs]


def test_a_paused_run_goes_on_after_its_last_message(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    insert_wide_rows(pipeline)
    with held_at(pipeline, nats_server, tmp_path, 22) as process:
        wish(pipeline, nats_server, tmp_path, "pause")
        assert process.wait() == ENDED_BY_PEOPLE, process.log()
        assert states(pipeline) == [RunState.PAUSED]
        kept = pipeline.lines()
        assert len(kept) == 20
        reading = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active'"
        assert pipeline.source.execute(reading) == [(0,)]
    again = pipeline.run()
    assert (again.number, again.attempt, again.state) == (1, 2, RunState.FINISHED)
    assert len(pipeline.lines()) == again.rows_read == ROWS
    assert pipeline.merged() == pipeline.expected()


@pytest.mark.timeout(300)
def test_a_paused_run_of_several_ranges_goes_on_with_each_after_its_last_message(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    insert_wide_rows(pipeline)
    keys = keys_of(pipeline, nats_server, tmp_path, *IN_RANGES)
    with held_in_ranges(pipeline, keys) as process:
        wish(pipeline, nats_server, tmp_path, "pause", *IN_RANGES)
        assert process.wait() == ENDED_BY_PEOPLE, process.log()
        kept = ids(pipeline)
        assert sorted(kept) == [1, 2, 3, 4, 11, 12, 13, 14]
    with PgsluiceProcess("run", "ratings", config=keys) as again:
        assert again.wait(RUN_DEADLINE_S) == 0, again.log()
    assert ids(pipeline)[: len(kept)] == kept
    assert sorted(ids(pipeline)) == list(range(1, ROWS + 1))
    [run] = pipeline.record().runs
    assert (run.state, run.attempt, run.rows_read) == (RunState.FINISHED, 2, ROWS)
    assert pipeline.merged() == pipeline.expected()


def test_an_executor_begins_nothing_while_people_wish_a_pause(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it publish a row before it looks for their wish the first time."""

    async def never_looks(watch: WishWatch) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(WishWatch, "run", never_looks)
    pipeline.source.execute("INSERT INTO t VALUES (1, 'a', now() - interval '1 hour')")
    pipeline.run()
    wish(pipeline, nats_server, tmp_path, "pause")
    pipeline.source.execute("INSERT INTO t VALUES (2, 'b')")
    assert pipeline.run(request="tick").state is RunState.PAUSED
    assert len(pipeline.lines()) == 1
    wish(pipeline, nats_server, tmp_path, "resume")
    assert pipeline.run(request="tick").state is RunState.FINISHED
    assert pipeline.merged() == pipeline.expected()


def test_after_a_cancelled_run_the_next_one_reads_from_the_checkpoint(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    insert_wide_rows(pipeline)
    with held_at(pipeline, nats_server, tmp_path, 22) as process:
        assert "run 1 of ratings is cancelled" in wish(pipeline, nats_server, tmp_path, "cancel")
        assert process.wait() == ENDED_BY_PEOPLE, process.log()
    assert pipeline.record().checkpoint == ()
    assert pipeline.run().rows == ROWS
    assert states(pipeline) == [RunState.CANCELLED, RunState.FINISHED]
    assert len(pipeline.lines()) == 20 + ROWS
    assert pipeline.merged() == pipeline.expected()


def test_a_killed_run_that_is_cancelled_is_not_taken_up(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    insert_wide_rows(pipeline)
    with held_at(pipeline, nats_server, tmp_path, 22) as process:
        pipeline.kill(process)
        wish(pipeline, nats_server, tmp_path, "cancel")
    assert not pipeline.plan().is_resumed
    assert pipeline.run().number == 2
    assert states(pipeline) == [RunState.CANCELLED, RunState.FINISHED]
    assert pipeline.merged() == pipeline.expected()


def test_what_is_left_of_a_failed_run_can_be_cancelled(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    pipeline.source.execute("INSERT INTO t VALUES (1, 'x')")
    pipeline.change(query="SELECT id, v::int AS v, updated_at FROM t", max_dead_letters=0)
    with pytest.raises(TerminalError):
        pipeline.run()
    wish(pipeline, nats_server, tmp_path, "cancel")
    assert states(pipeline) == [RunState.CANCELLED]
    pipeline.source.execute("UPDATE t SET v = 1")
    second = pipeline.run()
    assert (second.number, second.state) == (2, RunState.FINISHED)
    with PgsluiceProcess("runs", "cancel", "ratings", config=keys_of(pipeline, nats_server, tmp_path)) as command:
        assert command.wait() == 2
        assert "no run is in progress" in command.log()


def test_a_request_whose_run_was_cancelled_before_it_was_taken_up_again_begins_no_other_run(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    pipeline.source.execute("INSERT INTO t VALUES (1, 'x')")
    pipeline.change(query="SELECT id, v::int AS v, updated_at FROM t", max_dead_letters=0)
    with pytest.raises(TerminalError):
        pipeline.run(request="key-1")
    wish(pipeline, nats_server, tmp_path, "cancel")
    pipeline.source.execute("UPDATE t SET v = 1")
    again = pipeline.run(request="key-1")
    assert (again.number, again.state) == (1, RunState.CANCELLED)
    assert states(pipeline) == [RunState.CANCELLED]


def test_after_a_cancelled_full_run_of_another_query_all_rows_are_read(
    pipeline: PipelineUnderTest, nats_server: NatsServer, tmp_path: Path
) -> None:
    pipeline.source.execute("INSERT INTO t SELECT n, n::text, now() - interval '1 hour' FROM generate_series(1, 10) n")
    pipeline.run()
    pipeline.source.execute("INSERT INTO t VALUES (11, 'x')")
    pipeline.change(query="SELECT id, v::int AS v, updated_at FROM t", max_dead_letters=0)
    with pytest.raises(TerminalError):
        pipeline.run(full=True)
    wish(pipeline, nats_server, tmp_path, "cancel")
    pipeline.source.execute("UPDATE t SET v = 11 WHERE id = 11")
    third = pipeline.run()
    assert (third.rows, third.is_full) == (11, True)


def test_a_request_is_one_run_however_often_it_is_carried_out(pipeline: PipelineUnderTest) -> None:
    pipeline.source.execute("INSERT INTO t VALUES (1, 'x')")
    first = pipeline.run(full=True, request="key-1")
    pipeline.source.execute("INSERT INTO t VALUES (2, 'x')")
    assert pipeline.run(full=True, request="key-1") == first
    assert pipeline.run(request="key-2").number == 2


def test_a_full_run_of_a_request_is_taken_up_by_the_next_executor(pipeline: PipelineUnderTest) -> None:
    pipeline.source.execute("INSERT INTO t SELECT n, n::text, now() - interval '1 hour' FROM generate_series(1, 10) n")
    pipeline.source.execute("UPDATE t SET v = 'x' WHERE id = 7")
    pipeline.change(query="SELECT id, v::int AS v, updated_at FROM t", max_dead_letters=0)
    with pytest.raises(TerminalError):
        pipeline.run(full=True, request="key-1")
    pipeline.source.execute("UPDATE t SET v = 7 WHERE id = 7")
    again = pipeline.run(full=True, request="key-1")
    assert (again.number, again.attempt) == (1, 2)


async def test_a_broker_that_does_not_answer_ends_no_run(group: str) -> None:
    with NatsServer() as server:
        async with connected(server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(group))
            await bucket.make(1)
            watch = WishWatch(bucket, 1)
            assert not await watch.is_to_end()
            server.kill()
            assert not await watch.is_to_end()
