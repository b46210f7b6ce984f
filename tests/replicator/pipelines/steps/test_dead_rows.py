"""A row on which a step fails is set aside, told by its key alone, and read again when somebody asks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from pgsluice.console.dead import LetterSelection, ask_for_replay, blocking, remove_letters
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, StoredLetter
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.wire.dead_letter import RUNS
from pgsluice.shared.wire.names import GroupNames, check_worker_name
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest
from tests.replicator.pipelines.steps.test_step_runs import use

EVERY = LetterSelection("", (), every=True)
T = TypeVar("T")


def at_letters(pipeline: PipelineUnderTest, work: Callable[[DeadLetterStream], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with connected(pipeline.settings.nats, "test") as client:
            return await work(DeadLetterStream(client, GroupNames(pipeline.pipeline.group)))

    return asyncio.run(ask())


def letters(pipeline: PipelineUnderTest) -> list[StoredLetter]:
    return at_letters(pipeline, lambda stream: stream.letters())


def insert(pipeline: PipelineUnderTest, *bad: int) -> None:
    """Forty rows, of which a step fails on some."""
    pipeline.source.execute("INSERT INTO t SELECT n, n::text, timestamptz '2026-01-01' FROM generate_series(1, 40) n")
    pipeline.source.execute(f"UPDATE t SET v = 'secret' WHERE id = ANY(ARRAY{list(bad)}::bigint[])")
    use(pipeline, "whole_number")


def mend(pipeline: PipelineUnderTest) -> None:
    """The rows can go on, and look no newer."""
    pipeline.source.execute("UPDATE t SET v = id::text WHERE v = 'secret'")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("whole_number", r"step 1 \(tests\..*:whole_number\) failed: ValueError at .*example_steps\.py:\d+"),
        ("emptied_key", r"step 1 \(.*:emptied_key\) gives a row without a value in 'id', of the key"),
        ("other_columns", r"step 1 \(.*:other_columns\) gives other columns than for a batch without rows"),
    ],
)
def test_a_letter_tells_the_step_and_the_line_and_nothing_of_the_row(
    pipeline: PipelineUnderTest, function: str, said: str
) -> None:
    pipeline.source.execute("INSERT INTO t VALUES (1, 'secret', timestamptz '2026-01-01')")
    use(pipeline, function)
    ended = pipeline.run()
    assert (ended.rows, ended.dead) == (1, 1)
    [stored] = letters(pipeline)
    [listed] = blocking([stored])
    assert (listed.worker, listed.table, listed.state, listed.behind) == (RUNS, "pipeline 'ratings'", "dead", 0)
    assert "secret" not in repr(stored) + repr(listed)
    assert re.search(said, listed.reason)
    assert stored.letter.row == '["2026-01-01 00:00:00+00", "1"]'


def test_the_other_rows_go_on(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 3, 4, 17, 40)
    assert pipeline.run().dead == 4
    assert sorted(map(int, pipeline.merged())) == [n for n in range(1, 41) if n not in (3, 4, 17, 40)]
    assert pipeline.run().rows == 0
    assert len(letters(pipeline)) == 4


def test_a_replay_has_the_next_run_read_the_row_as_it_is_then(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 3, 17)
    pipeline.run()
    mend(pipeline)
    assert pipeline.run().rows == 0  # nobody has asked yet
    third = str(letters(pipeline)[0].letter.position)
    at_letters(pipeline, lambda stream: ask_for_replay(stream, LetterSelection("", (third,), every=False)))
    before = len(pipeline.lines())
    assert (pipeline.run().rows, len(pipeline.lines()) - before) == (1, 1)
    assert len(letters(pipeline)) == 1
    at_letters(pipeline, lambda stream: ask_for_replay(stream, EVERY))
    pipeline.change(batch_rows=10)
    pipeline.run()
    assert letters(pipeline) == []
    assert sorted(map(int, pipeline.merged())) == list(range(1, 41))


def test_what_fails_again_comes_back_and_is_one_letter(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 3)
    pipeline.run()
    at_letters(pipeline, lambda stream: ask_for_replay(stream, EVERY))
    assert pipeline.run().dead == 1
    [stored] = letters(pipeline)
    assert (stored.is_queued, stored.letter.attempts) == (False, 2)
    at_letters(pipeline, lambda stream: remove_letters(stream, EVERY))
    assert letters(pipeline) == []


def test_a_full_run_leaves_letters_of_those_rows_that_fail_in_it(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 3, 4)
    pipeline.run()
    pipeline.source.execute("UPDATE t SET v = '3' WHERE id = 3")
    assert pipeline.run(full=True).dead == 1
    [stored] = letters(pipeline)
    assert stored.letter.row.endswith('"4"]')


def test_too_many_rows_that_fail_end_the_run_and_the_next_one_goes_on(pipeline: PipelineUnderTest) -> None:
    insert(pipeline, 3, 4)
    pipeline.change(max_dead_letters=1)
    with pytest.raises(TerminalError, match="more than 1 rows that cannot be processed; the last one: step 1") as raised:
        pipeline.run()
    assert "secret" not in str(raised.value)
    mend(pipeline)
    ended = pipeline.run()
    assert (ended.number, ended.attempt) == (1, 2)
    assert sorted(map(int, pipeline.merged())) == list(range(1, 41))


def test_no_worker_has_the_name_of_runs() -> None:
    with pytest.raises(UsageError, match="not valid"):
        check_worker_name(RUNS)
