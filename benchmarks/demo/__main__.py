"""The demo from start to end; its exit code is 0 only when source and target are equal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator

from benchmarks.demo import shop
from benchmarks.demo.comparison import compare, sample
from benchmarks.demo.copy_figures import CopyObserver
from benchmarks.demo.figures import Figures, Observer
from benchmarks.demo.screen import LiveArea, LiveCopy, LiveFigures, Screen
from benchmarks.demo.shop_group import GROUP, DemoError, configuration, log_end, servers, wait_for_slot
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, parse_lsn
from tests.servers import Database, PgsluiceProcess

LOAD_S = 20.0
WRITERS = 3
TRANSACTIONS_PER_S = 150.0
"""Of each writer: together some 3,000 changes a second, which leaves a machine of two cores room for all the servers."""

LOOK_INTERVAL_S = 0.25
COPY_DEADLINE_S = 120.0
CATCH_UP_DEADLINE_S = 60.0


class Demo:
    """The running group, and the load on its source."""

    def __init__(
        self, screen: Screen, source: Database, target: Database, observer: Observer, processes: list[PgsluiceProcess]
    ) -> None:
        self._screen, self._source, self._target = screen, source, target
        self._observer, self._processes = observer, processes
        self._writers = [shop.Writer(source, TRANSACTIONS_PER_S) for _ in range(WRITERS)]
        self._more = 0

    def written(self) -> int:
        """Changes since the load began."""
        return self._more + sum(writer.changes for writer in self._writers)

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """The shop is open while the context lasts."""
        for writer in self._writers:
            writer.start()
        try:
            yield
        finally:
            for writer in self._writers:
                writer.stop()

    def check_processes(self) -> None:
        """Raises DemoError when the replicator or the worker has ended."""
        for process in self._processes:
            if not process.is_running:
                raise DemoError(f"a pgsluice process ended with exit code {process.wait()}:\n{log_end(process)}")

    async def look(self) -> Figures:
        self.check_processes()
        return await self._observer.look(time.monotonic(), self.written())

    async def copy(self, observer: CopyObserver, live: LiveCopy) -> int:
        """Returns when every row that was there is in the target; how many these were."""
        end = time.monotonic() + COPY_DEADLINE_S
        while True:
            self.check_processes()
            figures = await observer.look(time.monotonic())
            live.show(figures, self.written())
            for table in figures.errored:
                raise DemoError(f"{table.qualified_name} was not copied: {table.error}")
            if figures.is_applied:
                return figures.applied_rows
            if time.monotonic() > end:
                raise DemoError(f"the copy was not applied within {COPY_DEADLINE_S:.0f} s:\n{log_end(self._processes[-1])}")
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def stream(self, live: LiveFigures) -> None:
        end = time.monotonic() + LOAD_S
        while (now := time.monotonic()) < end:
            live.show(await self.look(), f"load for another {end - now:.0f} s")
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def catch_up(self, live: LiveFigures, phase: str) -> None:
        """Returns when everything that is committed now is in the target."""
        lsn = self._end()
        end = time.monotonic() + CATCH_UP_DEADLINE_S
        while True:
            figures = await self.look()
            live.show(figures, phase)
            if figures.applied_lsn >= lsn:
                return
            if time.monotonic() > end:
                raise DemoError(
                    f"the target did not catch up within {CATCH_UP_DEADLINE_S:.0f} s:\n{log_end(self._processes[-1])}"
                )
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _end(self) -> LSN:
        """An LSN that every commit so far is below, and one more commit above it, so that reaching it proves all applied."""
        with self._source.connect(autocommit=False) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("INSERT INTO customers (name, address) VALUES ('the last one', '{}')")
        assert row is not None
        self._more += 1
        return parse_lsn(row[0])

    def compare(self) -> bool:
        comparisons = [compare(self._source, self._target, table) for table in shop.TABLES]
        self._screen.show_comparison(comparisons)
        for table in shop.TABLES:
            self._screen.show_rows(table, sample(self._source, self._target, table))
        return all(each.is_equal for each in comparisons)

    def summary(self, live: LiveFigures) -> str:
        transactions = sum(writer.transactions for writer in self._writers)
        return (
            f"{self.written():,} changes in {transactions:,} transactions of {WRITERS} connections;"
            f" while the shop was open the target was {live.rates.median_lag_s:.2f} s behind (median)"
        )


async def run(screen: Screen) -> bool:
    """Whether source and target are equal at the end."""
    names = GroupNames(GROUP)
    async with contextlib.AsyncExitStack() as stack:
        source, target, nats = stack.enter_context(servers())
        screen.say(f"PostgreSQL source on port {source.server.port}, target on {target.server.port}; NATS on {nats.port}")
        shop.create_tables(source)
        screen.say(f"the shop has {shop.fill(source):,} rows in {len(shop.TABLES)} tables; the target is empty")
        config = configuration(source, target, nats)
        replicator = stack.enter_context(PgsluiceProcess("replicator", config=config))
        wait_for_slot(source, names.slot, replicator)
        worker = stack.enter_context(PgsluiceProcess("worker", "postgres", config=config))
        client = await connect(nats.settings(), "pgsluice demo")
        stack.push_async_callback(client.close)
        observer = stack.enter_context(
            contextlib.closing(Observer(source, target, ChangeStream(client, names), GROUP, names.slot))
        )
        copy_observer = stack.enter_context(contextlib.closing(CopyObserver(target, Ledger(StateBucket(client, names)), GROUP)))
        demo = Demo(screen, source, target, observer, [replicator, worker])
        await show(screen, demo, copy_observer)
        for process in (worker, replicator):
            process.terminate()
        exit_codes = [process.wait() for process in (worker, replicator)]
        if exit_codes != [0, 0]:
            raise DemoError(f"worker and replicator ended with exit codes {exit_codes} after SIGTERM, not 0")
        return demo.compare()


async def show(screen: Screen, demo: Demo, copy_observer: CopyObserver) -> None:
    """The copy under load, the hand-over to the stream, the stream; returns when everything is applied."""
    await demo.look()  # nothing is written yet, so nothing waits: lags count from here
    with demo.load():
        screen.say("the replicator streams and starts Spark for the copy; the shop opens")
        with LiveArea(screen) as area:
            rows = await demo.copy(copy_observer, LiveCopy(area))
        waiting = demo.written()
        screen.say(f"all {rows:,} copied rows are in the target; {waiting:,} changes made meanwhile are in the stream")
        began_at = time.monotonic()
        with LiveArea(screen) as area:
            await demo.catch_up(LiveFigures(area), "hand-over")
        screen.say(f"these are applied after {time.monotonic() - began_at:.1f} s; the shop stays open")
        with LiveArea(screen) as area:
            live = LiveFigures(area)
            await demo.stream(live)
    with LiveArea(screen) as area:
        await demo.catch_up(LiveFigures(area), "load stopped, catching up")
    screen.say(demo.summary(live))


def main() -> int:
    screen = Screen()
    try:
        is_equal = asyncio.run(run(screen))
    except DemoError as failure:
        screen.say(f"the demo failed: {failure}")
        return 1
    except KeyboardInterrupt:
        return 130
    screen.say("source and target are equal" if is_equal else "source and target are DIFFERENT")
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
