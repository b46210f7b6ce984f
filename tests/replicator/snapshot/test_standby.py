"""A copy from a standby, whose primary removes rows that the copy still reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pgsluice.replicator.snapshot.export import SnapshotKeeper
from pgsluice.shared.errors import SnapshotGoneError
from tests.background_thread import BackgroundThread
from tests.end_to_end.group_under_test import configuration
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until

OTHER_HOST = "127.0.0.2"
CURE = "set hot_standby_feedback = on at this standby, or raise its max_standby_streaming_delay"


class Pair:
    """A primary, and a standby that ends at once whatever reads rows that the primary removes."""

    def __init__(self, stack: ExitStack) -> None:
        primary = stack.enter_context(PostgresServer())
        self.primary = primary.create_database("source")
        self.primary.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text); CREATE TABLE small (id bigint PRIMARY KEY)")
        self.primary.execute("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 1000) n")
        primary.stop()
        standby = primary.copy(OTHER_HOST)
        primary.start()
        (standby.data_directory / "standby.signal").touch()
        conninfo = f"host={primary.host} port={primary.port} user={primary.user} dbname=postgres"
        standby.settings |= {"primary_conninfo": conninfo, "max_standby_streaming_delay": "0"}
        self.standby = Database(stack.enter_context(standby), self.primary.dbname)

    def clean(self) -> None:
        self.primary.execute("UPDATE t SET v = v || 'x' WHERE id <= 10")
        self.primary.execute("VACUUM t")


class Cleaning(BackgroundThread):
    """Again and again."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self._pair = pair

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.wait(0.2):
            self._pair.clean()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


async def test_a_snapshot_that_a_standby_ends_is_gone_for_a_reason_that_can_be_cured(pair: Pair) -> None:
    keeper = await SnapshotKeeper.export(pair.standby.settings)
    try:
        await keeper.connection.execute("SELECT count(*) FROM public.t")
        pair.clean()
        with pytest.raises(SnapshotGoneError, match=CURE):
            await asyncio.wait_for(keeper.watch(), 30)
    finally:
        await keeper.close()


@pytest.mark.long
def test_a_copy_whose_snapshots_a_standby_ends_does_not_begin_anew_for_ever(
    pair: Pair, nats_server: NatsServer, group: str
) -> None:
    pair.primary.execute("CREATE TABLE large (id bigint PRIMARY KEY, v text)")
    pair.primary.execute("INSERT INTO large SELECT n, repeat('v', 500) FROM generate_series(1, 200000) n")  # no quick copy
    count = "SELECT count(*) FROM large"
    wait_until(lambda: pair.standby.execute("SELECT FROM pg_class WHERE relname = 'large'"), what="the table at the standby")
    wait_until(lambda: pair.standby.execute(count) == pair.primary.execute(count), what="its rows at the standby")
    keys = configuration(group, pair.standby, None, nats_server, copy=True, tables="t,small,large")
    with PgsluiceProcess("replicator", config=keys) as process:
        cleaning = Cleaning(pair)
        cleaning.start()
        try:
            assert process.wait(300) == 70, process.log()
        finally:
            cleaning.stop()
        assert CURE in process.log()
        assert "not copied: " in process.log().splitlines()[-1]
        assert process.log().count("copy interrupted") == 4
    with PgsluiceProcess("replicator", config=keys | {"retry-errored": True}) as process:
        assert process.wait(120) == 0, process.log()
