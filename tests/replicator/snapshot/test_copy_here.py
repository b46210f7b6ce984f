"""Ranges that are copied in the process of their copy."""

from __future__ import annotations

import asyncio

import pytest

from pgsluice.replicator.snapshot.copy_here import LITTLE_BYTES, LITTLE_RELATIONS, copying_here, is_little
from pgsluice.replicator.snapshot.copy_task_messages import RangeStatus
from pgsluice.replicator.source.source import Source
from tests.replicator.copier import Copier
from tests.waiting import wait_until_async

WAITING = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def test_what_is_cancelled_ends_although_it_waits_for_a_lock_and_the_next_snapshot_is_copied(copier: Copier) -> None:
    copier.source.execute("CREATE TABLE t AS SELECT n AS id FROM generate_series(1, 100) n")
    running = asyncio.get_running_loop()

    async def is_waiting() -> bool:
        return bool(copier.source.execute(WAITING))

    async def is_free() -> bool:
        return not copier.source.execute(WAITING)

    async with copying_here() as here:
        with copier.source.connect(autocommit=False) as other:
            async with copier.snapshot("t") as (parameters, ranges):
                other.execute("LOCK TABLE t")
                copying = running.run_in_executor(here.threads, here.job(parameters), ranges)
                await wait_until_async(is_waiting, what="the copy that waits")
                here.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await copying
                await wait_until_async(is_free, what="the end of its statement")
            other.rollback()
        async with copier.snapshot("t") as (parameters, ranges):
            [outcome] = await running.run_in_executor(here.threads, here.job(parameters), ranges)
            assert (outcome.status, outcome.rows) == (RangeStatus.DONE, 100)


async def test_tables_are_little_by_their_number_and_bytes_with_their_partitions_and_large_values(copier: Copier) -> None:
    source = copier.source
    source.execute("CREATE TABLE few (id int); CREATE TABLE p (id int) PARTITION BY RANGE (id); CREATE TABLE wide (v text)")
    for number in range(LITTLE_RELATIONS):
        source.execute(f"CREATE TABLE p{number} PARTITION OF p FOR VALUES FROM ({number}) TO ({number + 1})")
    source.execute("ALTER TABLE wide ALTER v SET STORAGE EXTERNAL")
    source.execute("INSERT INTO wide VALUES (repeat('x', %s))", [LITTLE_BYTES])
    asking = await Source.connect(source.settings)
    try:
        found = {name: await is_little(asking, [copier.oid(name)]) for name in ("few", "p", "wide")}
        assert found == {"few": True, "p": False, "wide": False}
        with source.connect(autocommit=False) as other:
            other.execute("LOCK TABLE few")
            assert not await is_little(asking, [copier.oid("few")])
        assert await is_little(asking, [copier.oid("few")])
    finally:
        await asking.close()
