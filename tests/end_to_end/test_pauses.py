"""A busy group whose worker is paused and resumed at random moments: nothing is cut or lost, and no WAL is kept for it."""

from __future__ import annotations

import asyncio
import random

import pytest

from pgsluice.console.units.orders import UnitVerb, is_obeyed, write_order
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.unit_records import worker_unit
from pgsluice.shared.units.found_units import read_units
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.random_load import RandomLoad, checksums
from tests.end_to_end.test_stand_by import applied_sequence
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until, wait_until_async

UNIT = worker_unit("postgres")
SEED = 20_261
RESTS = "paused, until 'pgsluice resume'"


class PausedAtRandom:
    """Orders pauses and looks whether they are obeyed, without the command line's start."""

    def __init__(self, nats: NatsServer, group: str, source: Database, target: Database) -> None:
        self.nats, self.group, self.source, self.target = nats, group, source, target
        self.random = random.Random(SEED)

    async def run(self, times: int) -> None:
        async with connected(self.nats.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(self.group))
            for number in range(times):
                await asyncio.sleep(self.random.uniform(0, 1))
                await self.order(bucket, UnitVerb.PAUSE)
                place = applied_sequence(self.target)
                await asyncio.sleep(self.random.uniform(0, 1))
                await self.wait_until_confirmed()
                if number == times - 1:
                    await self.wait_until_freed()
                assert applied_sequence(self.target) == place, "the position moved in a pause"
                await self.order(bucket, UnitVerb.RESUME)

    async def order(self, bucket: StateBucket, verb: UnitVerb) -> None:
        """Returns when it is obeyed."""
        await write_order(bucket, UNIT, (verb,), "a test", "")

        async def obeyed() -> bool:
            return all(map(is_obeyed, await read_units(bucket, [UNIT], await Ledger(bucket).load_snapshot())))

        await wait_until_async(obeyed, deadline_s=120, what=f"to {verb}", interval_s=0.1)

    async def wait_until_confirmed(self) -> None:
        """The slot moves past all that is written now, though the worker rests."""
        await self._wait_until_slot_passes("confirmed_flush_lsn", "SELECT 1")

    async def wait_until_freed(self) -> None:
        """The source keeps nothing any more of what is written now; it finds that out at a checkpoint."""
        await self._wait_until_slot_passes("restart_lsn", "CHECKPOINT")

    async def _wait_until_slot_passes(self, column: str, before: str) -> None:
        [(written,)] = self.source.execute("SELECT pg_current_wal_lsn()::text")

        async def has_passed() -> bool:
            self.source.execute(before)
            return self.source.execute(f"SELECT {column} > '{written}' FROM pg_replication_slots") == [(True,)]

        await wait_until_async(has_passed, deadline_s=120, what=f"{column} of the slot while the worker rests", interval_s=0.2)


@pytest.mark.long
@pytest.mark.parametrize("times", [5, 100])
@pytest.mark.timeout(1800)
def test_random_pauses_cut_no_batch_lose_nothing_and_keep_no_wal(
    source: Database, target_database: Database, nats_server: NatsServer, group: str, times: int
) -> None:
    RandomLoad.create_tables(source)
    load = RandomLoad(source, seed=SEED, most_rows=100)  # a flood would only make every pause wait for a larger backlog
    keys = configuration(group, source, target_database, nats_server)
    with GroupUnderTest(keys) as under_test:
        under_test.replicator.wait_for_log("replicating")
        with load:
            wait_until(lambda: applied_sequence(target_database) > 0, deadline_s=120, what="the first batch at the target")
            asyncio.run(PausedAtRandom(nats_server, group, source, target_database).run(times))
            load.stop()
        wait_until(
            lambda: not under_test.worker.is_running or checksums(source) == checksums(target_database),
            deadline_s=300,
            what="equal tables",
            interval_s=0.5,
        )
        log = under_test.worker.log()
        assert under_test.worker.is_running, log
        assert log.count(RESTS) == times
        assert "did not finish" not in log


@pytest.mark.long  # tests/worker/test_pause.py has each step with a smaller sink
@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_in_a_pause_rests_when_it_is_started_again(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    """By the commands, as people give them."""
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    keys = configuration(group, source_database, target_database, nats_server)
    where = {"group": group, "nats-url": nats_server.url}

    def order(*arguments: str) -> str:
        with PgsluiceProcess(*arguments, config=where) as process:
            assert process.wait() == 0, process.stdout() + process.log()
            return process.stdout()

    with GroupUnderTest(keys) as under_test:
        under_test.replicator.wait_for_log("replicating", deadline_s=120)
        under_test.worker.wait_for_log("reading", deadline_s=120)
        assert "worker postgres: paused" in order("pause", "--wait", "60s", "--reason", "a test")
        under_test.worker.kill()
        source_database.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        under_test.worker.start()
        wait_until(lambda: under_test.worker.log().count(RESTS) == 2, deadline_s=120, what="rest")
        assert "worker postgres: paused" in order("pause", "--wait", "60s")
        assert "PAUSED since" in order("status")
        assert target_database.execute("SELECT to_regclass('t')") == [(None,)]
        assert "worker postgres: running" in order("resume", "--wait", "120s")
        wait_until(
            lambda: (
                target_database.execute("SELECT to_regclass('t')") != [(None,)]
                and target_database.execute("SELECT count(*)::int FROM t") == [(1000,)]
            ),
            deadline_s=120,
            what="the rows",
        )
        assert "worker postgres: stopped" in order("stop", "--wait", "60s")
        assert under_test.worker.wait() == 0
