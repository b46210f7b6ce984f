"""The demo from start to end; its exit code is 0 only when source and target are equal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator

from benchmarks.demo import shop
from benchmarks.demo.comparison import compare, sample
from benchmarks.demo.figures import Figures, Observer
from benchmarks.demo.screen import LiveFigures, Screen
from shared.jetstream import ChangeStream, connect
from shared.lsn import LSN, parse_lsn
from shared.names import GroupNames
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import DeadlineError, wait_until

GROUP = "demo"
LOAD_S = 20.0
WRITERS = 3
TRANSACTIONS_PER_S = 150.0
"""Of each writer: together some 3,000 changes a second, which leaves a machine of two cores room for all the servers."""

LOOK_INTERVAL_S = 0.25
START_DEADLINE_S = 60.0
CATCH_UP_DEADLINE_S = 60.0


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


@contextlib.contextmanager
def servers() -> Iterator[tuple[Database, Database, NatsServer]]:
    with PostgresServer() as source, PostgresServer() as target, NatsServer() as nats:
        yield source.create_database("shop"), target.create_database("shop"), nats


def configuration(source: Database, target: Database, nats: NatsServer) -> dict[str, object]:
    """One file for both processes."""
    return {
        "group": GROUP,
        "nats-url": nats.url,
        "host": source.server.host,
        "port": source.server.port,
        "dbname": source.dbname,
        "user": source.server.user,
        "schema": "public",
        "target-host": target.server.host,
        "target-port": target.server.port,
        "target-dbname": target.dbname,
        "target-user": target.server.user,
        "target-sync-schema": True,
    }


class Demo:
    """The running group, and the load on its source."""

    def __init__(
        self, screen: Screen, source: Database, target: Database, observer: Observer, processes: list[PgsluiceProcess]
    ) -> None:
        self._screen, self._source, self._target = screen, source, target
        self._observer, self._processes = observer, processes
        self._writers = [shop.Writer(source, TRANSACTIONS_PER_S) for _ in range(WRITERS)]
        self._filled = 0

    def written(self) -> int:
        return self._filled + sum(writer.changes for writer in self._writers)

    async def look(self) -> Figures:
        """Figures of now; raises DemoError when the replicator or the worker has ended."""
        for process in self._processes:
            if not process.is_running:
                raise DemoError(f"a pgsluice process ended with exit code {process.wait()}:\n{log_end(process)}")
        return await self._observer.look(time.monotonic(), self.written())

    async def fill(self) -> None:
        """Writes the shop's first rows and waits for them: from then on the worker is warm."""
        self._filled = shop.fill(self._source)
        await self._until_applied(await self._end(), START_DEADLINE_S, None)

    async def run_load(self, figures: LiveFigures) -> None:
        for writer in self._writers:
            writer.start()
        end = time.monotonic() + LOAD_S
        try:
            while (now := time.monotonic()) < end:
                figures.show(await self.look(), f"load for another {end - now:.0f} s")
                await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            for writer in self._writers:
                writer.stop()

    async def catch_up(self, figures: LiveFigures) -> None:
        await self._until_applied(await self._end(), CATCH_UP_DEADLINE_S, figures)

    async def _end(self) -> LSN:
        """An LSN that every commit so far is below, and one more commit above it, so that reaching it proves all applied."""
        with self._source.connect(autocommit=False) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("INSERT INTO customers (name, address) VALUES ('the last one', '{}')")
        assert row is not None
        self._filled += 1
        return parse_lsn(row[0])

    async def _until_applied(self, lsn: LSN, deadline_s: float, live: LiveFigures | None) -> None:
        end = time.monotonic() + deadline_s
        while True:
            figures = await self.look()
            if live is not None:
                live.show(figures, "load stopped, catching up")
            if figures.applied_lsn >= lsn:
                return
            if time.monotonic() > end:
                raise DemoError(f"the target did not catch up within {deadline_s:.0f} s:\n{log_end(self._processes[-1])}")
            await asyncio.sleep(LOOK_INTERVAL_S)

    def compare(self) -> bool:
        comparisons = [compare(self._source, self._target, table) for table in shop.TABLES]
        self._screen.show_comparison(comparisons)
        for table in shop.TABLES:
            self._screen.show_rows(table, sample(self._source, self._target, table))
        return all(each.is_equal for each in comparisons)

    def summary(self, figures: LiveFigures, load_s: float) -> str:
        transactions = sum(writer.transactions for writer in self._writers)
        return (
            f"{self.written():,} changes in {transactions:,} transactions of {WRITERS} connections during {load_s:.0f} s;"
            f" largest lag seen {figures.rates.largest_lag_s:.2f} s"
        )


def wait_for_slot(source: Database, slot: str, replicator: PgsluiceProcess) -> None:
    """Returns when the replicator streams from its slot: what is written from then on is replicated."""

    def is_active_or_over() -> bool:
        active = source.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", [slot])
        return bool(active) or not replicator.is_running

    try:
        wait_until(is_active_or_over, deadline_s=START_DEADLINE_S, what="the replicator's start")
    except DeadlineError as error:
        raise DemoError(f"{error}:\n{log_end(replicator)}") from None
    if not replicator.is_running:
        raise DemoError(f"the replicator ended with exit code {replicator.wait()}:\n{log_end(replicator)}")


def log_end(process: PgsluiceProcess) -> str:
    return process.log()[-3000:]


async def run(screen: Screen) -> bool:
    """Whether source and target are equal at the end."""
    names = GroupNames(GROUP)
    async with contextlib.AsyncExitStack() as stack:
        source, target, nats = stack.enter_context(servers())
        screen.say(f"PostgreSQL source on port {source.server.port}, target on {target.server.port}; NATS on {nats.port}")
        shop.create_tables(source)
        config = configuration(source, target, nats)
        replicator = stack.enter_context(PgsluiceProcess("replicator", config=config))
        wait_for_slot(source, names.slot, replicator)
        screen.say("the replicator streams")
        worker = stack.enter_context(PgsluiceProcess("worker", "postgres", config=config))
        client = await connect(nats.settings(), "pgsluice demo")
        stack.push_async_callback(client.close)
        observer = stack.enter_context(
            contextlib.closing(Observer(source, target, ChangeStream(client, names), GROUP, names.slot))
        )
        demo = Demo(screen, source, target, observer, [replicator, worker])
        await demo.fill()
        screen.say(f"the worker has made the target's tables and applied the shop's first {demo.written():,} rows")
        with LiveFigures(screen) as figures:
            began_at = time.monotonic()
            await demo.run_load(figures)
            load_s = time.monotonic() - began_at
            await demo.catch_up(figures)
        screen.say(demo.summary(figures, load_s))
        for process in (worker, replicator):
            process.terminate()
        exit_codes = [process.wait() for process in (worker, replicator)]
        if exit_codes != [0, 0]:
            raise DemoError(f"worker and replicator ended with exit codes {exit_codes} after SIGTERM, not 0")
        return demo.compare()


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
