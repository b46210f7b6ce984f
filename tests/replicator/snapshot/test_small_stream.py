"""A copy that is larger than its stream comes to its end, whatever its ranges and rows are like, and whoever fails or is slow."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest

from pgsluice.replicator.snapshot.copy_task_messages import RangeStatus
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.broker.streams import SnapshotStream
from tests.replicator.copier import Copier
from tests.replicator.snapshot.copy_applier import CopyApplier
from tests.replicator.snapshot.small_copy import SmallCopy
from tests.waiting import wait_until, wait_until_async

MIB = 1 << 20
DEADLINE_S = 60.0

_COPYING = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE 'COPY (SELECT%'"""


@pytest.fixture
async def small_copy(copier: Copier) -> SmallCopy:
    """Of a table of 6 MiB of text, through a stream of 2 MiB."""
    copier.source.execute("CREATE TABLE t (id int, v text)")
    copier.source.execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 30000) n")
    made = SmallCopy(copier, 2 * MIB)
    await made.ensure()
    return made


async def copied(copy: SmallCopy, *appliers: CopyApplier, range_bytes: int = MIB) -> Phase:
    """Copies while the appliers apply; each of them has every row once then, and the whole table if that is finished."""
    record = await asyncio.wait_for(copy.run("t", range_bytes), DEADLINE_S)
    expected = copy.copier.source.execute("SELECT id, v FROM t")
    for applier in appliers:
        await asyncio.to_thread(applier.apply_all)
        rows = applier.rows[copy.snapshot_id, record.oid]
        if record.phase is Phase.FINISHED_COPY:
            assert rows == Counter(f"{key}\t{value}".encode() for key, value in expected)
    return record.phase


def applier(copy: SmallCopy, name: str = "w", batch: int = 1000, pause_s: float = 0.01) -> CopyApplier:
    return CopyApplier(copy.copier.nats, copy.copier.group, name, batch=batch, pause_s=pause_s)


async def test_ranges_that_together_fill_the_stream_come_to_their_end(small_copy: SmallCopy) -> None:
    with applier(small_copy) as worker:
        assert await copied(small_copy, worker) is Phase.FINISHED_COPY
    assert small_copy.ranges > 5
    assert small_copy.attempts == {RangeStatus.DONE: small_copy.ranges}


async def test_a_range_that_is_larger_than_the_stream_comes_to_its_end(small_copy: SmallCopy) -> None:
    with applier(small_copy) as worker:
        assert await copied(small_copy, worker, range_bytes=64 * MIB) is Phase.FINISHED_COPY
    assert small_copy.ranges == 1


async def test_the_slowest_worker_sets_the_pace_and_loses_nothing(small_copy: SmallCopy) -> None:
    with applier(small_copy) as fast, applier(small_copy, "slow", batch=1, pause_s=0.004) as slow:
        assert await copied(small_copy, fast, slow) is Phase.FINISHED_COPY


async def test_ranges_that_fail_are_repeated_and_nothing_is_lost_or_doubled(small_copy: SmallCopy) -> None:
    """At first in a full stream, of which each range in hand has a part that nobody has applied."""
    copying = asyncio.ensure_future(copied(small_copy))
    await wait_until_full(small_copy)
    await asyncio.to_thread(end_tasks, small_copy)
    with applier(small_copy, batch=3) as worker:
        for _ in range(3):
            await asyncio.to_thread(end_tasks, small_copy)
        assert await copying is Phase.FINISHED_COPY
        await asyncio.to_thread(worker.apply_all)
        [rows] = worker.rows.values()
        assert set(rows.values()) == {1}
        assert len(rows) == 30_000
    assert small_copy.attempts[RangeStatus.UNAVAILABLE] >= 3


def end_tasks(copy: SmallCopy) -> None:
    """Breaks the connections of tasks that are in the middle of a range."""
    wait_until(lambda: copy.copier.source.execute(_COPYING), what="a range that is read", interval_s=0.001)


async def wait_until_full(copy: SmallCopy) -> None:
    async with connected(copy.copier.nats, "test") as client:
        stream = SnapshotStream(client, copy.copier.names)

        async def is_full() -> bool:
            state = await stream.state()
            return state is not None and state.bytes > state.max_bytes - 100_000

        await wait_until_async(is_full, what="a full stream")


async def test_rows_larger_than_a_task_s_share_are_copied_when_nothing_else_is(small_copy: SmallCopy) -> None:
    source = small_copy.copier.source
    source.execute("UPDATE t SET v = repeat('y', 30 * id) WHERE id % 4000 = 0")  # 120 to 840 KB
    source.execute("INSERT INTO t VALUES (0, repeat('z', 1500000))")
    with applier(small_copy) as worker:
        assert await copied(small_copy, worker) is Phase.FINISHED_COPY
    assert small_copy.attempts[RangeStatus.DONE] == small_copy.ranges
    assert small_copy.attempts[RangeStatus.NEEDS_ROOM] > 0


async def test_a_row_that_the_stream_can_never_hold_is_refused_with_the_size_that_it_takes(small_copy: SmallCopy) -> None:
    small_copy.copier.source.execute("INSERT INTO t VALUES (0, repeat('z', 1900000))")
    with applier(small_copy) as worker:
        record = await asyncio.wait_for(small_copy.run("t", MIB), DEADLINE_S)
        await asyncio.to_thread(worker.apply_all)
    assert record.phase is Phase.ERRORED
    assert re.fullmatch(r"public.t has a row that takes 19\d{5} bytes of the stream, which has room for 1638400", record.error)
    assert record.remedy.startswith("set stream-max-bytes to 4MiB or more; then run 'pgsluice tables retry'")
