"""A group whose replicator runs while tables join and leave: its process, orders to it, and what can be seen of it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from pgsluice.replicator.membership.membership import Membership, load_membership
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger, LedgerContent, Phase, TableRecord
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.group_reader import GroupReader, Rows
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

COPY_DEADLINE_S = 90.0
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
        return GroupNames(self.name)

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
        before = self.starts if self._has_started else 0
        self._has_started = True
        process.start()
        try:
            wait_until(lambda: self.starts > before or not process.is_running, what="the stream")
            assert process.is_running, process.log()
            yield process
            if process.is_running:
                process.terminate()
                assert process.wait() == 0
        finally:
            print(process.log())
            if process.is_running:
                process.kill()

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
        keys = {"group": self.name, "nats-url": self.nats.url}
        with PgsluiceProcess("tables", verb, *arguments, config=keys) as process:
            code = process.wait(COPY_DEADLINE_S)
            said = process.stdout() + process.log()
        print(said)
        return code, said

    def ordered(self, verb: str, *arguments: str) -> str:
        code, said = self.order(verb, "--wait", str(COPY_DEADLINE_S), *arguments)
        assert code == 0, said
        return said

    def listed(self) -> dict[str, dict[str, Any]]:
        """``tables list``, by table."""
        keys = {"group": self.name, "nats-url": self.nats.url}
        with PgsluiceProcess("tables", "list", "--json", config=keys) as process:
            assert process.wait() == 0, process.log()
            return {each["table"]: each for each in json.loads(process.stdout())["tables"]}

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
        found = [record for record in self.ledger().tables.values() if record.table == name]
        return max(found, key=lambda record: record.oid, default=None)

    def wait_for_table(self, name: str, condition: Callable[[TableRecord], bool], what: str) -> TableRecord:
        def find() -> TableRecord | None:
            record = self.table(name)
            return record if record is not None and condition(record) else None

        found = wait_until(find, deadline_s=COPY_DEADLINE_S, what=f"{what} of {name}", interval_s=0.05)
        assert found is not None
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
        query = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        wait_until(lambda: self.source.execute(query, [lsn, self.names.slot]) == [(True,)], what="the stream")

    def read(self, *tables: str) -> dict[str, Rows]:
        """What the streams make of each table, once everything that is committed now is in them."""
        self.wait_until_published()
        return self.in_the_streams(*tables)

    def in_the_streams(self, *tables: str) -> dict[str, Rows]:
        reader = GroupReader(self.nats.settings(), self.name)
        return {table: reader.rows(table) for table in tables}

    def at_source(self, *tables: str) -> dict[str, Rows]:
        rows = {table: self.source.execute(f"SELECT id::text, v FROM {table}") for table in tables}
        return {table: {str(first).encode(): str(second).encode() for first, second in found} for table, found in rows.items()}
