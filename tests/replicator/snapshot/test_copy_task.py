"""A range is in the stream once and whole, however often, by whom and after what it was copied."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import psycopg
import pytest

from pgsluice.replicator.snapshot.copy_task import CopyProcess, locked
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeOutcome, RangeStatus
from pgsluice.replicator.snapshot.export import begin, import_snapshot
from pgsluice.replicator.source.connection import connect as open_connection
from pgsluice.shared.broker.connection import connect, connected
from pgsluice.shared.broker.streams import SnapshotStream
from tests.replicator.copier import Copier, copy_all
from tests.servers import NatsServer
from tests.snapshot_audit import CopiedRows, SnapshotAudit, audit_snapshot
from tests.waiting import wait_until_async

WHOLE_TABLE = 1 << 40


def create_table(copier: Copier, rows: int = 5000) -> None:
    copier.source.execute("CREATE TABLE t (id int, v text)")
    copier.source.execute("INSERT INTO t SELECT n, repeat('x', n %% 300) FROM generate_series(1, %s) n", [rows])


def expected_rows(copier: Copier) -> Counter[bytes]:
    rows = copier.source.execute("SELECT id, v FROM t")
    return Counter(f"{key}\t{value}".encode() for key, value in rows)


async def audited(copier: Copier) -> SnapshotAudit:
    audit = await asyncio.to_thread(audit_snapshot, copier.nats, copier.group)
    assert audit.problems == []
    return audit


async def copied_rows(copier: Copier, parameters: CopyParameters) -> CopiedRows:
    """What the stream holds of the table; every range that is there has its end."""
    copied = (await audited(copier)).copy_of(parameters.snapshot_id, copier.oid("t"))
    assert copied.ranges == copied.ended_ranges
    return copied


def statuses(outcomes: list[RangeOutcome]) -> set[RangeStatus]:
    return {outcome.status for outcome in outcomes}


async def test_ranges_hold_every_row_once(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        outcomes = await copy_all(copy_process, parameters, ranges)
    assert statuses(outcomes) == {RangeStatus.DONE}
    assert len(ranges) > 10
    copied = await copied_rows(copier, parameters)
    assert copied.rows == expected_rows(copier)
    assert copied.ranges == set(range(1, len(ranges) + 1))
    assert sum(outcome.rows for outcome in outcomes) == 5000
    assert sum(outcome.bytes for outcome in outcomes) == sum(len(row) + 1 for row in copied.rows.elements())


async def test_a_process_that_is_closed_keeps_no_descriptor(copier: Copier) -> None:
    create_table(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        before = set(os.listdir("/proc/self/fd"))
        process = CopyProcess()
        await copy_all(process, parameters, ranges)
        await asyncio.to_thread(process.close)
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # of the listing itself


async def test_an_empty_table_is_one_message_without_rows(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier, rows=0)
    async with copier.snapshot("t") as (parameters, ranges):
        [outcome] = await copy_all(copy_process, parameters, ranges)
    assert (outcome.status, outcome.rows, outcome.bytes) == (RangeStatus.DONE, 0, 0)
    assert (await audited(copier)).messages == 2
    assert (await copied_rows(copier, parameters)).ranges == {1}


async def test_a_range_that_is_copied_again_adds_nothing_and_is_not_read(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        first = await copy_all(copy_process, parameters, ranges)
        before = (await audited(copier)).messages
        copier.source.execute("ALTER TABLE t RENAME TO moved")
        again = await copy_all(copy_process, parameters, ranges)
        copier.source.execute("ALTER TABLE moved RENAME TO t")
    assert [replace(outcome, is_whole=True) for outcome in again] == first
    assert (await audited(copier)).messages == before


async def test_two_tasks_that_copy_one_range_at_the_same_time_double_nothing(copier: Copier) -> None:
    create_table(copier, rows=20_000)
    processes = [CopyProcess() for _ in range(3)]
    try:
        async with copier.snapshot("t", WHOLE_TABLE) as (parameters, ranges):
            outcomes = await asyncio.gather(*(copy_all(process, parameters, ranges) for process in processes))
    finally:
        for process in processes:
            await asyncio.to_thread(process.close)
    assert [(outcome.status, outcome.rows) for [outcome] in outcomes] == [(RangeStatus.DONE, 20_000)] * 3
    assert (await copied_rows(copier, parameters)).rows == expected_rows(copier)


_COPY_AND_DIE = """
import pickle, sys
from pgsluice.replicator.snapshot.copy_task import CopyProcess
parameters, ranges = pickle.load(sys.stdin.buffer)
process = CopyProcess()
for request in ranges:
    process.copy(parameters, request)
"""


async def test_a_task_that_is_killed_in_the_middle_is_finished_by_the_next(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier, rows=60_000)
    async with copier.snapshot("t", WHOLE_TABLE) as (parameters, ranges):
        killed = await asyncio.create_subprocess_exec(sys.executable, "-c", _COPY_AND_DIE, stdin=subprocess.PIPE)
        assert killed.stdin is not None
        killed.stdin.write(pickle.dumps((parameters, ranges)))
        killed.stdin.close()
        await _wait_for_messages(copier, 20)
        killed.kill()
        await killed.wait()
        before = await audited(copier)
        assert before.copy_of(parameters.snapshot_id, copier.oid("t")).ended_ranges == set()
        [outcome] = await copy_all(copy_process, parameters, ranges)
    assert (outcome.status, outcome.rows) == (RangeStatus.DONE, 60_000)
    assert (await copied_rows(copier, parameters)).rows == expected_rows(copier)


async def _wait_for_messages(copier: Copier, count: int) -> None:
    client = await connect(copier.nats, "test")
    stream = SnapshotStream(client, copier.names)

    async def arrived() -> bool:
        state = await stream.state()
        return state is not None and state.messages >= count

    try:
        await wait_until_async(arrived, what=f"{count} messages", interval_s=0.001)
    finally:
        await client.close()


async def test_rows_larger_than_a_message_arrive_in_chunks(copier: Copier, copy_process: CopyProcess) -> None:
    copier.chunk_bytes = 10_000
    copier.source.execute("CREATE TABLE t (id int, v text)")
    copier.source.execute("INSERT INTO t SELECT n, repeat(chr(64 + n), n * 20000) FROM generate_series(0, 6) n")
    async with copier.snapshot("t", WHOLE_TABLE) as (parameters, ranges):
        outcomes = await copy_all(copy_process, parameters, ranges)
    assert statuses(outcomes) == {RangeStatus.DONE}
    assert (await copied_rows(copier, parameters)).rows == expected_rows(copier)


async def test_what_copy_text_escapes_stays_escaped(copier: Copier, copy_process: CopyProcess) -> None:
    copier.source.execute("CREATE TABLE t (id int, v text)")
    copier.source.execute("INSERT INTO t VALUES (1, E'a\\tb\\nc\\\\d'), (2, ''), (3, NULL), (4, '\\N'), (5, '\\.')")
    async with copier.snapshot("t") as (parameters, ranges):
        await copy_all(copy_process, parameters, ranges)
    rows = sorted((await copied_rows(copier, parameters)).rows)
    assert rows == [b"1\ta\\tb\\nc\\\\d", b"2\t", b"3\t\\N", b"4\t\\\\N", b"5\t\\\\."]


async def test_changes_made_during_the_copy_are_not_in_it(copier: Copier, copy_process: CopyProcess) -> None:
    """Updated rows move to other pages, deleted ones leave theirs, vacuum may remove none of them."""
    create_table(copier)
    expected = expected_rows(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        half = len(ranges) // 2
        await copy_all(copy_process, parameters, ranges[:half])
        copier.source.execute("UPDATE t SET v = 'changed'")
        copier.source.execute("DELETE FROM t WHERE id % 3 = 0")
        copier.source.execute("INSERT INTO t SELECT n, 'new' FROM generate_series(1, 1000) n")
        copier.source.execute("VACUUM t")
        await copy_all(copy_process, parameters, ranges[half:])
    assert (await copied_rows(copier, parameters)).rows == expected


@pytest.mark.parametrize("statement", ["VACUUM FULL t", "TRUNCATE t", "ALTER TABLE t ALTER id TYPE bigint", "DROP TABLE t"])
async def test_a_table_that_was_rewritten_since_the_snapshot_is_not_copied(
    copier: Copier, copy_process: CopyProcess, statement: str
) -> None:
    create_table(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        assert (await copy_all(copy_process, parameters, ranges[:1]))[0].status is RangeStatus.DONE
        copier.source.execute(statement)
        assert statuses(await copy_all(copy_process, parameters, ranges[1:])) == {RangeStatus.REWRITTEN}


_TABLES_CHANGE_NAMES = """
    ALTER TABLE t RENAME TO former;
    ALTER TABLE other RENAME TO t
"""
_COLUMNS_CHANGE_NAMES = """
    ALTER TABLE t RENAME COLUMN v TO former;
    ALTER TABLE t RENAME COLUMN w TO v;
    ALTER TABLE t RENAME COLUMN former TO w
"""
_A_SCHEMA_CHANGES_ITS_NAME = """
    ALTER SCHEMA public RENAME TO former;
    CREATE SCHEMA public;
    CREATE TABLE public.t (id int, v text, w text)
"""


@pytest.mark.parametrize("statements", [_TABLES_CHANGE_NAMES, _COLUMNS_CHANGE_NAMES, _A_SCHEMA_CHANGES_ITS_NAME])
async def test_what_bears_the_name_of_another_now_is_not_copied_for_it(
    copier: Copier, copy_process: CopyProcess, statements: str
) -> None:
    """The filenode that the snapshot shows is still there, under another name."""
    for table in ("t", "other"):
        copier.source.execute(f"CREATE TABLE {table} (id int, gone int, v text, w text); ALTER TABLE {table} DROP COLUMN gone")
        copier.source.execute(f"INSERT INTO {table} SELECT n, '{table} v', '{table} w' FROM generate_series(1, 5000) n")
    async with copier.snapshot("t") as (parameters, ranges):
        assert (await copy_all(copy_process, parameters, ranges[:1]))[0].status is RangeStatus.DONE
        copier.source.execute(statements)
        assert statuses(await copy_all(copy_process, parameters, ranges[1:])) == {RangeStatus.REWRITTEN}


async def test_a_relation_cannot_be_rewritten_while_a_range_is_read(copier: Copier) -> None:
    create_table(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        connection = await open_connection(copier.source.settings)
        await begin(connection)
        await import_snapshot(connection, parameters.snapshot_name)
        async with locked(connection, ranges[0].pages):
            with copier.source.connect() as other:
                other.execute("SET lock_timeout = '100ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute("VACUUM FULL t")
        copier.source.execute("VACUUM FULL t")
        await connection.close()


async def test_column_privileges_are_enough_for_a_column_list(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier, rows=100)
    role = f"reader_{copier.source.dbname}"
    copier.source.execute(f'CREATE PUBLICATION "{copier.names.publication}" FOR TABLE t (id)')
    copier.source.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT (id, ctid) ON t TO {role}")
    try:
        async with copier.snapshot("t") as (parameters, ranges):
            restricted = replace(parameters, source=replace(parameters.source, user=role))
            outcomes = await copy_all(copy_process, restricted, ranges)
            await asyncio.to_thread(copy_process.close)
    finally:
        copier.source.execute(f"REVOKE ALL ON t FROM {role}; DROP ROLE {role}")
    assert statuses(outcomes) == {RangeStatus.DONE}
    assert (await copied_rows(copier, parameters)).rows == Counter(b"%d" % n for n in range(1, 101))


async def test_a_table_whose_rows_the_role_sees_only_in_part_is_refused(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier, rows=100)
    role = f"reader_{copier.source.dbname}"
    copier.source.execute(f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE ROLE {role} LOGIN; GRANT SELECT ON t TO {role}")
    try:
        async with copier.snapshot("t") as (parameters, ranges):
            restricted = replace(parameters, source=replace(parameters.source, user=role))
            outcomes = await copy_all(copy_process, restricted, ranges)
            await asyncio.to_thread(copy_process.close)
    finally:
        copier.source.execute(f"REVOKE ALL ON t FROM {role}; DROP ROLE {role}")
    assert statuses(outcomes) == {RangeStatus.REFUSED}
    assert "give the role BYPASSRLS" in str(outcomes[0].error)


async def test_no_lock_is_held_between_ranges(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        await copy_all(copy_process, parameters, ranges[:2])
        with copier.source.connect() as connection:
            connection.execute("SET lock_timeout = '1s'")
            connection.execute("ALTER TABLE t ADD COLUMN later int")


async def test_without_its_snapshot_a_range_needs_a_new_one(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        pass
    assert statuses(await copy_all(copy_process, parameters, ranges[:1])) == {RangeStatus.SNAPSHOT_GONE}


async def test_a_task_with_an_open_transaction_outlives_the_keeper(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier)
    async with copier.snapshot("t") as (parameters, ranges):
        await copy_all(copy_process, parameters, ranges[:1])
    assert statuses(await copy_all(copy_process, parameters, ranges[1:])) == {RangeStatus.DONE}
    assert (await copied_rows(copier, parameters)).rows == expected_rows(copier)


async def test_a_row_filter_is_honoured_and_its_failure_names_no_value(copier: Copier, copy_process: CopyProcess) -> None:
    copier.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'my'), (2, 'your')")
    copier.source.execute(f"CREATE PUBLICATION \"{copier.names.publication}\" FOR TABLE t WHERE (4 / id < 3 OR v LIKE 'x%')")
    async with copier.snapshot("t") as (parameters, ranges):
        await copy_all(copy_process, parameters, ranges)
    assert list((await copied_rows(copier, parameters)).rows) == [b"2\tyour"]
    copier.source.execute("INSERT INTO t VALUES (0, 'my secret')")
    async with copier.snapshot("t") as (parameters, ranges):
        [outcome] = await copy_all(copy_process, parameters, ranges)
    assert outcome.status is RangeStatus.REFUSED
    assert str(outcome.error) == (
        "copying public.t failed (SQLSTATE 22012): the publication's row filter fails on a row; correct it"
    )


async def test_a_range_waits_for_room_in_the_stream(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier)
    copier.max_bytes = 300_000
    async with copier.snapshot("t", WHOLE_TABLE) as (parameters, ranges):
        async with connected(copier.nats, "test") as client:
            stream = SnapshotStream(client, copier.names)
            copying = asyncio.create_task(copy_all(copy_process, parameters, ranges))

            async def is_full() -> bool:
                return await stored_bytes(stream) > copier.max_bytes - 2 * copier.cut_bytes

            async def is_done_with_more_room() -> bool:
                """A task that began anew would look for the newest message, so that one stays."""
                state = await stream.state()
                assert state is not None
                await stream.purge_up_to(state.last_sequence - 1)
                return copying.done()

            await wait_until_async(is_full, what="a full stream")
            assert not copying.done()
            await wait_until_async(is_done_with_more_room, what="the end of the range", interval_s=0.1)
        [outcome] = copying.result()
    assert (outcome.status, outcome.rows) == (RangeStatus.DONE, 5000)


async def stored_bytes(stream: SnapshotStream) -> int:
    state = await stream.state()
    assert state is not None
    return state.bytes


async def test_a_broker_that_is_killed_loses_and_doubles_nothing(copier: Copier, copy_process: CopyProcess) -> None:
    create_table(copier, rows=30_000)
    with NatsServer() as nats:
        copier.nats = nats.settings()
        async with copier.snapshot("t", WHOLE_TABLE) as (parameters, ranges):
            copying = asyncio.create_task(copy_all(copy_process, parameters, ranges))
            for messages in (20, 200):
                await _wait_for_messages(copier, messages)
                nats.kill()
                nats.start()
            [outcome] = await copying
        assert (outcome.status, outcome.rows) == (RangeStatus.DONE, 30_000)
        assert (await copied_rows(copier, parameters)).rows == expected_rows(copier)
