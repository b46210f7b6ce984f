"""The program copies tables: once, beside the stream, interrupted in every way, with tables in trouble."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, connected
from pgsluice.shared.broker.ledger import CopyState, Ledger, LedgerContent, Phase, TableRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.replicator.snapshot.copy_applier import CopyApplier
from tests.replicator.snapshot.table_gate import TableGate
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.snapshot_audit import audit_snapshot
from tests.waiting import wait_until, wait_until_async

COPY_DEADLINE_S = 90.0
MANY_RANGES = "64KiB"


@dataclass
class CopiedGroup:
    """A group whose replicator copies ``source``."""

    name: str
    source: Database
    nats: NatsServer

    def replicator(self, *flags: str, is_fresh: bool = True, **keys: Any) -> PgsluiceProcess:
        """With a JVM of its own, whose tasks end with it when it is killed, and which takes a moment to read its first rows."""
        chosen = {key.replace("_", "-"): value for key, value in keys.items()}
        config = configuration(self.name, self.source, None, self.nats) | {"copy-range-bytes": MANY_RANGES} | chosen
        return PgsluiceProcess("replicator", *flags, config=config, is_fresh=is_fresh)

    def run(self, *flags: str, **keys: Any) -> tuple[int, str]:
        """Exit code and log."""
        with self.replicator(*flags, is_fresh=False, **keys) as process:
            try:
                code = process.wait(COPY_DEADLINE_S)
            finally:
                print(process.log())
            return code, process.log()

    def ledger(self) -> LedgerContent:
        async def load() -> LedgerContent:
            async with connected(self.nats.settings(), "test") as client:
                bucket = StateBucket(client, GroupNames(self.name))
                return await Ledger(bucket).load() if await bucket.exists() else LedgerContent(None, {})

        return asyncio.run(load())

    def table(self, name: str) -> TableRecord:
        [record] = [record for record in self.ledger().tables.values() if record.table == name]
        return record

    def wait_for_table(self, name: str, condition: Callable[[TableRecord], bool], what: str) -> TableRecord:
        def find() -> TableRecord | None:
            return next((table for table in self.ledger().tables.values() if table.table == name and condition(table)), None)

        record = wait_until(find, deadline_s=COPY_DEADLINE_S, what=what, interval_s=0.05)
        assert record is not None
        return record

    def gate(self, table: str, ranges: int = 0) -> TableGate:
        """A closed gate before a table that is planned, of which as many ranges (or one or two more) are copied."""

        async def planned() -> None:
            async with connected(self.nats.settings(), "test") as client:
                stream = SnapshotStream(client, GroupNames(self.name))

                async def is_planned() -> bool:
                    state = await stream.state()
                    return state is not None and state.messages > 0

                await wait_until_async(is_planned, deadline_s=COPY_DEADLINE_S, what="the plan", interval_s=0.002)
                gate.close()

        gate = TableGate(self.source, table)
        asyncio.run(planned())
        if ranges:
            gate.let_pass(ranges)
            self.wait_for_table(table, lambda record: record.ranges_done >= ranges, "some ranges")
        return gate

    def copied(self, name: str) -> Counter[bytes]:
        """The rows of the snapshot that counts, which has every range and its end."""
        record = self.table(name)
        assert record.phase is Phase.FINISHED_COPY, record
        audit = audit_snapshot(self.nats.settings(), self.name)
        assert audit.problems == []
        copy = audit.copy_of(record.snapshot, record.oid)
        assert copy.attempt == record.attempt
        assert copy.ended_ranges == copy.ranges == set(range(1, record.ranges + 1))
        assert sum(copy.rows.values()) == record.rows
        return copy.rows

    def rows(self, name: str) -> Counter[bytes]:
        """The rows of a table of two columns, as COPY text has them."""
        found = self.source.execute(f'SELECT * FROM "{name}"')
        return Counter(f"{first}\t{second}".encode() for first, second in found)

    def slots(self) -> list[str]:
        rows = self.source.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
        return [str(name) for (name,) in rows]

    def read_tuples(self, name: str) -> int:
        """How many rows of the table the source has read so far, by its own statistics."""
        [(count,)] = self.source.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = %s", [name])
        return int(count)


@pytest.fixture
def copied(group: str, source_database: Database, nats_server: NatsServer) -> CopiedGroup:
    return CopiedGroup(group, source_database, nats_server)


def create_tables(source: Database, **rows: int) -> None:
    for name, count in rows.items():
        source.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY, v text)')
        source.execute(f'INSERT INTO "{name}" SELECT n, md5(n::text) FROM generate_series(1, {count}) n')


def test_copy_publishes_every_row_once_and_leaves_nothing_in_the_source(copied: CopiedGroup) -> None:
    create_tables(copied.source, large=20_000, empty=0, small=3)
    copied.source.execute(
        "CREATE TABLE parted (a int, b int) PARTITION BY LIST (a); CREATE TABLE p1 PARTITION OF parted FOR VALUES IN (1);"
        "CREATE TABLE p2 PARTITION OF parted FOR VALUES IN (2); INSERT INTO parted VALUES (1, 1), (2, 2);"
        "CREATE TABLE without_partitions (a int, b int) PARTITION BY LIST (a);"
        "CREATE TABLE child (c int) INHERITS (small); INSERT INTO child VALUES (4, 'x', 1)"
    )
    code, log = copied.run("--copy")
    assert code == 0
    for table in ("large", "empty", "parted", "without_partitions"):
        assert copied.copied(table) == copied.rows(table)
    assert sum(copied.copied("small").values()) == 3
    assert sum(copied.copied("child").values()) == 1
    assert {record.table for record in copied.ledger().tables.values()} == {
        "large", "empty", "small", "parted", "without_partitions", "child",
    }  # fmt: skip
    snapshot = copied.ledger().snapshot
    assert snapshot is not None
    assert snapshot.state is CopyState.FINISHED
    assert "copy is finished  tables=6 errored=0 rows=20006" in log
    assert copied.slots() == []
    assert copied.source.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_finished_copy_is_not_repeated_and_needs_no_spark(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=100)
    assert copied.run("--copy")[0] == 0
    before = copied.table("t")
    code, log = copied.run("--copy")
    assert code == 0
    assert copied.table("t") == before
    assert "starting Spark" not in log


def test_only_the_stream_s_own_slot_exists_while_a_copy_runs(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=12_000)
    with copied.replicator("--copy-and-stream") as process:
        with copied.gate("t", ranges=1):
            assert copied.slots() == [GroupNames(copied.name).slot]
        while copied.table("t").phase is Phase.DATA_SYNC:
            assert copied.slots() == [GroupNames(copied.name).slot]
        copied.source.execute("INSERT INTO t VALUES (0, 'after the copy')")
        wait_until(lambda: changes(copied) == 1, what="a change in the stream")
        process.terminate()
        assert process.wait() == 0
    assert sum(copied.copied("t").values()) == 12_000


def changes(copied: CopiedGroup) -> int:
    async def messages() -> int:
        async with connected(copied.nats.settings(), "test") as client:
            state = await ChangeStream(client, GroupNames(copied.name)).state()
            return 0 if state is None else state.messages

    return asyncio.run(messages())


def test_current_is_where_the_source_is_after_the_copy(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=24_000)
    with copied.replicator("--copy-and-stream", "--until-lsn=current") as process:
        with copied.gate("t", ranges=1) as gate:
            gate.execute("INSERT INTO t VALUES (0, 'during the copy')")
        assert process.wait(COPY_DEADLINE_S) == 0
    assert changes(copied) == 1
    assert sum(copied.copied("t").values()) == 24_000


def test_tables_wait_in_the_ledger_before_the_change_stream_exists(copied: CopiedGroup) -> None:
    """A worker that starts with the stream must not take a table for one that is never copied."""
    create_tables(copied.source, t=10)

    async def first_sight() -> Phase | None:
        client = await connect(copied.nats.settings(), "test")
        names = GroupNames(copied.name)
        try:
            stream = ChangeStream(client, names)
            await wait_until_async(stream.state, deadline_s=COPY_DEADLINE_S, what="the change stream", interval_s=0)
            tables = (await Ledger(StateBucket(client, names)).load()).tables
            return next((table.phase for table in tables.values()), None)
        finally:
            await client.close()

    with copied.replicator("--copy-and-stream"):
        assert asyncio.run(first_sight()) in (Phase.INIT, Phase.DATA_SYNC)


@pytest.mark.parametrize("ranges", [pytest.param(6, marks=pytest.mark.long), 16, pytest.param(26, marks=pytest.mark.long)])
def test_after_a_kill_finished_tables_are_kept_and_the_others_copied_anew(copied: CopiedGroup, ranges: int) -> None:
    create_tables(copied.source, first=40_000, second=40_000, third=20_000)
    replicator = copied.replicator("--copy-and-stream", max_copy_workers_per_table=2, max_copy_connections=2)
    with replicator as process, copied.gate("second", ranges=ranges):
        begun = copied.table("second")
        copied.wait_for_table("first", lambda table: table.phase is Phase.FINISHED_COPY, "the first table")
        process.kill()
    assert begun.phase is Phase.DATA_SYNC
    kept, read = copied.table("first"), copied.read_tuples("first")
    copied.source.execute("UPDATE second SET v = 'changed' WHERE id % 2 = 0; DELETE FROM third WHERE id % 3 = 0")
    assert copied.run("--copy-and-stream", "--until-lsn=current")[0] == 0
    assert copied.table("first") == kept
    assert copied.read_tuples("first") == read
    assert copied.table("second").attempt == copied.table("third").attempt == 2
    assert copied.copied("second") == copied.rows("second")
    assert copied.copied("third") == copied.rows("third")
    assert sum(copied.copied("first").values()) == 40_000


def test_the_snapshot_s_death_begins_another_without_a_restart(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=24_000)
    with copied.replicator("--copy") as process:
        with copied.gate("t", ranges=4):
            before = copied.table("t")
            copied.source.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'pgsluice' AND datname = current_database() AND pid <> pg_backend_pid()"
            )
        code = process.wait(COPY_DEADLINE_S)
        print(process.log())
    assert code == 0
    after = copied.table("t")
    assert (after.attempt, after.snapshot != before.snapshot) == (2, True)
    assert copied.copied("t") == copied.rows("t")


def test_source_and_broker_may_die_and_come_back_while_tables_are_copied(group: str) -> None:
    with PostgresServer() as server, NatsServer() as nats:
        copied = CopiedGroup(group, server.create_database("source"), nats)
        create_tables(copied.source, t=24_000)
        with copied.replicator("--copy-and-stream", "--until-lsn=current") as process:
            with copied.gate("t", ranges=4) as gate:
                nats.kill()
                nats.start()
                gate.let_pass(8)
                copied.wait_for_table("t", lambda table: table.ranges_done > 6, "further ranges")
                server.kill()
            server.start()
            code = process.wait(COPY_DEADLINE_S)
            print(process.log())
        assert code == 0
        assert copied.copied("t") == copied.rows("t")
        assert copied.slots() == [GroupNames(group).slot]


def test_a_table_that_is_rewritten_meanwhile_is_copied_anew_and_the_others_once(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=24_000, other=1000)
    with copied.replicator("--copy") as process:
        with copied.gate("t", ranges=4) as gate:
            gate.execute("TRUNCATE t; INSERT INTO t VALUES (1, 'new')")
        code = process.wait(COPY_DEADLINE_S)
        print(process.log())
    assert code == 0
    assert (copied.table("t").attempt, copied.table("other").attempt) == (2, 1)
    assert copied.copied("t") == Counter([b"1\tnew"])


def test_a_table_in_trouble_does_not_stop_the_others_and_is_taken_up_on_request(copied: CopiedGroup) -> None:
    create_tables(copied.source, good=1000, bad=1000)
    publication = GroupNames(copied.name).publication
    copied.source.execute("UPDATE bad SET id = 0 WHERE id = 500")
    copied.source.execute(f'CREATE PUBLICATION "{publication}" FOR TABLE good, bad WHERE (100 / id >= 0)')
    code, log = copied.run("--copy")
    assert code == 70
    assert "not copied: public.bad" in log
    errored, good = copied.table("bad"), copied.table("good")
    assert errored.phase is Phase.ERRORED
    assert errored.error == "copying public.bad failed (SQLSTATE 22012)"
    assert good.phase is Phase.FINISHED_COPY

    copied.source.execute("UPDATE bad SET id = 500 WHERE id = 0")
    assert copied.run("--copy")[0] == 70
    assert copied.table("bad") == errored
    assert copied.run("--copy", "--retry-errored")[0] == 0
    assert copied.copied("bad") == copied.rows("bad")
    assert copied.table("bad").attempt == 2
    assert copied.table("good") == good


def test_sigterm_stops_a_copy_that_goes_on_at_the_next_start(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=24_000)
    with copied.replicator("--copy") as process:
        with copied.gate("t", ranges=4):
            process.terminate()
            assert process.wait(30) == 0
        assert "copy is finished" not in process.log()
    assert copied.table("t").phase is Phase.DATA_SYNC
    assert copied.run("--copy")[0] == 0
    assert copied.copied("t") == copied.rows("t")


def test_a_copy_waits_for_room_in_the_stream_and_stops_when_told(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=60_000)
    with copied.replicator("--copy", stream_max_bytes="1MiB") as process:
        process.wait_for_log("takes no rows now", COPY_DEADLINE_S)
        process.terminate()
        assert process.wait(30) == 0
        said = [line for line in process.log().splitlines() if "takes no rows now" in line]
        assert f"stream={GroupNames(copied.name).snapshot_stream}" in said[0], "what a task says has its fields"
        assert "start the workers or raise stream-max-bytes" in said[0]
    assert copied.run("--copy", stream_max_bytes="1GiB")[0] == 0
    assert copied.copied("t") == copied.rows("t")


def create_large(source: Database) -> None:
    """More than 3 MiB of text, with rows that go in several messages."""
    create_tables(source, t=40_000)
    source.execute("UPDATE t SET v = repeat('large', 60000) WHERE id % 8000 = 0")


def test_a_copy_may_be_larger_than_its_stream_when_workers_apply_it(copied: CopiedGroup) -> None:
    """Even each of its ranges may be."""
    create_large(copied.source)
    with copied.replicator("--copy", stream_max_bytes="2MiB", copy_range_bytes="2MiB") as process:
        with CopyApplier(copied.nats.settings(), copied.name) as worker:
            assert process.wait(COPY_DEADLINE_S) == 0
            worker.apply_all()
        assert "applied rows removed" in process.log()
    record = copied.table("t")
    assert record.phase is Phase.FINISHED_COPY
    assert worker.rows[record.snapshot, record.oid] == copied.rows("t")


def test_a_copy_that_was_killed_in_a_full_stream_is_begun_again_in_it(copied: CopiedGroup) -> None:
    """What is there is of no use to anybody, and goes when the workers have passed it."""
    create_large(copied.source)
    with copied.replicator("--copy", stream_max_bytes="1MiB", copy_range_bytes="1MiB") as process:
        process.wait_for_log("takes no rows now", COPY_DEADLINE_S)
        process.kill()
    with copied.replicator("--copy", stream_max_bytes="1MiB", copy_range_bytes="1MiB") as process:
        process.wait_for_log("takes no rows now", COPY_DEADLINE_S)
        with CopyApplier(copied.nats.settings(), copied.name) as worker:
            assert process.wait(COPY_DEADLINE_S) == 0
            worker.apply_all()
    record = copied.table("t")
    assert (record.attempt, record.phase) == (2, Phase.FINISHED_COPY)
    assert worker.rows[record.snapshot, record.oid] == copied.rows("t")


def test_two_copies_of_one_group_do_not_meet(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=24_000)
    with closing(copied.replicator("--copy")) as second, copied.replicator("--copy") as first:
        with copied.gate("t", ranges=1):
            second.start()
            second.wait_for_log("another replicator copies the tables")
        assert first.wait(COPY_DEADLINE_S) == 0
        assert second.wait(COPY_DEADLINE_S) == 0
    assert copied.table("t").attempt == 1


def test_a_copied_group_cannot_stream_without_what_lies_between(copied: CopiedGroup) -> None:
    create_tables(copied.source, t=10)
    assert copied.run("--copy")[0] == 0
    code, log = copied.run("--stream", "--until-lsn=current")
    assert code == 2
    assert "this group was copied with mode copy; the changes since then are not known" in log
    code, log = copied.run("--copy-and-stream", "--until-lsn=current")
    assert code == 2
    assert "this group was started with mode copy, not with mode copy-and-stream" in log
