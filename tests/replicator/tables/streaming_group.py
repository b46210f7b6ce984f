"""A group whose replicator runs while tables join and leave: its process, orders to it, and what can be seen of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import yaml

from pgsluice.console.tables import ListedTable, listed_tables
from pgsluice.replicator.membership.membership import Membership, load_membership
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger, LedgerContent, Phase, TableRecord
from pgsluice.shared.broker.table_selection import load_selection
from pgsluice.shared.units.applied_places import AppliedPlaces
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.group_reader import GroupReader, Rows
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until, wait_until_async

COPY_DEADLINE_S = 300.0
CHECK_INTERVAL = "1s"


class StreamingGroup:
    """Its source has public.t (id, v) with ten rows, which it copies and streams. ``keys`` are of its configuration."""

    def __init__(self, name: str, source: Database, nats: NatsServer, **keys: Any) -> None:
        self.name = name
        self.source = source
        self.nats = nats
        self.create("t", 10)
        own = {"copy-and-stream": True, "check-interval": CHECK_INTERVAL, "tables": "t", "copy-range-bytes": "64KiB"}
        self.keys = configuration(name, source, None, nats) | own | {key.replace("_", "-"): value for key, value in keys.items()}
        self._has_started = False
        self.process = PgsluiceProcess("replicator", config=self.keys)

    def close(self) -> None:
        self.process.close()

    @property
    def names(self) -> GroupNames:
        return GroupNames(self.name, str(self.keys.get("publication", "")))

    def create(self, table: str, rows: int = 0) -> None:
        self.source.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, v text)")
        if rows:
            self.insert(table, 1, rows)

    def insert(self, table: str, first: int, last: int) -> None:
        self.source.execute(f"INSERT INTO {table} SELECT n, 'v' || n FROM generate_series({first}, {last}) n")

    @contextmanager
    def running(self) -> Iterator[PgsluiceProcess]:
        """From when it streams; ended by SIGTERM."""
        process = self.process
        try:
            self.start()
            yield process
            self.stop()
        finally:
            print(process.log())
            if process.is_running:
                process.kill()

    def start(self) -> None:
        """Returns when it streams."""
        process = self.process
        before = self.starts if self._has_started else 0
        self._has_started = True
        process.start()
        wait_until(lambda: self.starts > before or not process.is_running, what="the stream")
        assert process.is_running, process.log()

    def stop(self) -> None:
        """By SIGTERM, if it runs."""
        if self.process.is_running:
            self.process.terminate()
            assert self.process.wait() == 0

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def starts(self) -> int:
        """How often a session has begun to stream."""
        return self.process.log().count("replicating ")

    def reconfigure(self, **keys: Any) -> None:
        """Writes the configuration file anew and has the replicator read it."""
        self.write(**keys)
        self.process.signal_all(signal.SIGHUP)

    def write(self, **keys: Any) -> None:
        self.keys |= {key.replace("_", "-"): value for key, value in keys.items()}
        self.process.config_path.write_text(yaml.safe_dump(self.keys))

    def order(self, verb: str, *arguments: str) -> tuple[int, str]:
        """Exit code, and what the command printed and logged."""
        with self._command(verb, *arguments) as process:
            return self._end_of(process)

    def ordered(self, verb: str, *arguments: str) -> str:
        code, said = self.order(verb, "--wait", str(COPY_DEADLINE_S), *arguments)
        assert code == 0, said
        return said

    def ordered_together(self, *orders: tuple[str, ...]) -> list[tuple[int, str]]:
        """``order`` of each, all at once, so that their copies are likely to need one start of Spark."""
        with ExitStack() as running:
            commands = [
                running.enter_context(self._command(verb, "--wait", str(COPY_DEADLINE_S), *arguments))
                for verb, *arguments in orders
            ]
            return [self._end_of(command) for command in commands]

    def _command(self, verb: str, *arguments: str) -> PgsluiceProcess:
        return PgsluiceProcess("tables", verb, *arguments, config={"group": self.name, "nats-url": self.nats.url})

    def _end_of(self, command: PgsluiceProcess) -> tuple[int, str]:
        code = command.wait(COPY_DEADLINE_S)
        said = command.stdout() + command.log()
        print(said)
        return code, said

    def listed(self) -> dict[str, ListedTable]:
        """As ``tables list`` has it, by table."""

        async def load(bucket: StateBucket) -> list[ListedTable]:
            ledger, applied = await Ledger(bucket).load(), await AppliedPlaces.read(bucket)
            return listed_tables(ledger, await load_membership(bucket), await load_selection(bucket), applied)

        return {each.table: each for each in self.ask(load)}

    def ask(self, question: Callable[[StateBucket], Any]) -> Any:
        """What the coroutine that ``question`` makes returns."""

        async def call() -> Any:
            async with connected(self.nats.settings(), "test") as client:
                return await question(StateBucket(client, self.names))

        return asyncio.run(call())

    def ledger(self) -> LedgerContent:
        content = self.ask(lambda bucket: Ledger(bucket).load())
        assert isinstance(content, LedgerContent)
        return content

    def membership(self) -> Membership:
        membership = self.ask(load_membership)
        assert isinstance(membership, Membership)
        return membership

    def table(self, name: str) -> TableRecord | None:
        """Of the newest table of that name; None when there is none in the ledger."""
        return newest_of(self.ledger(), name)

    def wait_for_table(self, name: str, condition: Callable[[TableRecord], bool], what: str) -> TableRecord:
        async def wait(bucket: StateBucket) -> TableRecord | None:
            async def find() -> TableRecord | None:
                record = newest_of(await Ledger(bucket).load(), name)
                return record if record is not None and condition(record) else None

            return await wait_until_async(find, deadline_s=COPY_DEADLINE_S, what=f"{what} of {name}", interval_s=0.05)

        found = self.ask(wait)
        assert isinstance(found, TableRecord)
        return found

    def wait_for_copy(self, name: str, attempt: int = 1) -> TableRecord:
        return self.wait_for_table(
            name, lambda record: record.phase is Phase.FINISHED_COPY and record.attempt >= attempt, "the finished copy"
        )

    def published(self) -> set[str]:
        query = "SELECT tablename FROM pg_publication_tables WHERE pubname = %s"
        return {str(name) for (name,) in self.source.execute(query, [self.names.publication])}

    def wait_until_published(self) -> None:
        """Everything that is committed now is in the stream."""
        [(lsn,)] = self.source.execute("SELECT pg_current_wal_lsn()::text")
        query = b"SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        with self.source.connect() as watching:
            wait_until(lambda: watching.execute(query, [lsn, self.names.slot]).fetchone() == (True,), what="the stream")

    def read(self, *tables: str) -> dict[str, Rows]:
        """What the streams make of each table, once everything that is committed now is in them."""
        self.wait_until_published()
        return self.in_the_streams(*tables)

    def in_the_streams(self, *tables: str) -> dict[str, Rows]:
        reader = GroupReader(self.nats.settings(), self.name)
        return {table: reader.rows(table) for table in tables}

    def changes_of(self, oid: int) -> int:
        """How many the stream holds of the table, once everything that is committed now is in it."""
        self.wait_until_published()
        return len(GroupReader(self.nats.settings(), self.name).changes[oid])

    def at_source(self, *tables: str) -> dict[str, Rows]:
        rows = {table: self.source.execute(f"SELECT id::text, v FROM {table}") for table in tables}
        return {table: {str(first).encode(): str(second).encode() for first, second in found} for table, found in rows.items()}


def newest_of(ledger: LedgerContent, name: str) -> TableRecord | None:
    found = [record for record in ledger.tables.values() if record.table == name]
    return max(found, key=lambda record: record.oid, default=None)
