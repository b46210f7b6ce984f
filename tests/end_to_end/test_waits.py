"""Commands that wait for a process end when the process can go on no more: with its reason, while it is there to be read."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import yaml

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.worker_records import read_reports
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

WAIT_S = "400"
NAMED = "waiting for processes of the group"


def started(stack: ExitStack, keys: dict[str, object], *commands: tuple[str, ...]) -> list[PgsluiceProcess]:
    """All at once, each from when it has said whom it waits for."""
    given = {key: keys[key] for key in ("group", "nats-url")}
    processes = [stack.enter_context(PgsluiceProcess(*command, config=given)) for command in commands]
    for process in processes:
        process.wait_for_log(NAMED)
    return processes


def has_reported(nats: NatsServer, group: str) -> bool:
    async def sequences() -> list[int]:
        async with connected(nats.settings(), "test") as client:
            reports = await read_reports(StateBucket(client, GroupNames(group)))
            return [report.sequence for report in reports.values()]

    return any(asyncio.run(sequences()))


def test_commands_end_with_the_reason_of_a_replicator_that_was_killed_and_cannot_start_again(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    keys = configuration(group, source_database, None, nats_server, tables="t")
    with PgsluiceProcess("replicator", config=keys) as replicator, ExitStack() as stack:
        replicator.wait_for_log("replicating ")
        replicator.kill()
        replicator.wait()
        processes = started(
            stack,
            keys,
            ("tables", "add", "other", "--without-copy", "--wait", WAIT_S),
            ("tables", "remove", "t", "--wait", WAIT_S),
        )
        slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
        wait_until(lambda: source_database.execute(slots, [f"pgsluice_{group.replace('-', '_')}"]), what="the slot goes")
        replicator.start()
        assert replicator.wait() == 70
        reason = replicator.log().splitlines()[-1].removeprefix("pgsluice: ").partition(": ")[0]
        for process in processes:
            assert process.wait() == 70
            assert f"the replicator of group '{group}' has failed" in process.log()
            assert reason in process.log()


def test_commands_end_with_the_reason_of_a_worker_that_was_killed_and_cannot_start_again(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, price int); CREATE TABLE gone (id int PRIMARY KEY)")
    target_database.execute("CREATE TABLE t (id int PRIMARY KEY, price int CHECK (price < 10))")
    running = GroupUnderTest(configuration(group, source_database, target_database, nats_server))
    succeed(replicate(running.keys))
    source_database.execute("INSERT INTO t VALUES (1, 1), (2, 20); INSERT INTO gone VALUES (1)")
    with running, ExitStack() as stack:
        wait_until(lambda: target_database.execute("SELECT id FROM t") == [(1,)], what="the row that fits")
        wait_until(lambda: has_reported(nats_server, group), what="the report of the worker")
        running.worker.kill()
        running.worker.wait()
        source_database.execute("INSERT INTO gone VALUES (2)")
        processes = started(
            stack,
            running.keys,
            ("dead", "replay", "--all", "--wait", WAIT_S),
            ("pause", "--table", "t", "--wait", f"{WAIT_S}s"),
            ("tables", "forget", "gone", "--yes", "--wait", WAIT_S),
        )
        processes[0].wait_for_log("postgres (unknown: ")  # until then its lease says that it runs
        processes += started(stack, running.keys, ("start", "--worker", "postgres", "--wait", f"{WAIT_S}s"))
        running.worker.config_path.write_text(yaml.safe_dump(running.keys | {"target-dbname": "nowhere"}))
        running.worker.start()
        assert running.worker.wait() == 2, running.worker.log()
        for process in processes:
            assert process.wait() == 70, process.log()
            assert f"worker 'postgres' of group '{group}' has failed" in process.log()
            assert 'database "nowhere" does not exist' in process.log()
