"""A user of the same machine who has none of our secrets, and wants them from a worker that runs."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.spark_stranger import listening_ports, read_blocks
from tests.waiting import wait_until

SECRET = "T4rget-s3cret"
BLOCKS = [f"broadcast_{number}_piece0" for number in range(40)]


@pytest.mark.parametrize("authenticates", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_running_worker_gives_no_block_of_spark_to_a_stranger(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, authenticates: bool
) -> None:
    """A worker whose user has switched it off does: so the stranger of this test knows how to ask."""
    keys = configuration(group, source_database, target_database, nats_server, **{"target-password": SECRET})
    keys["spark"] |= {"spark.cleaner.referenceTracking": "false"}  # or a job's block is gone at the JVM's next collection
    if not authenticates:
        keys["spark"] |= {"spark.authenticate": "false"}
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    succeed(replicate(keys))
    source_database.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n")
    succeed(replicate(keys))
    with PgsluiceProcess("worker", "postgres", config=keys, is_fresh=True) as worker:
        wait_until(lambda: applied(target_database) == 20_000, deadline_s=120, what="the rows")
        assert len(listening_ports(worker.pid)) >= 3
        blocks = read_blocks(worker.pid, BLOCKS)
        assert not authenticates or blocks == {}
        assert authenticates or blocks
        assert SECRET not in arguments_of(worker.pid)
        worker.terminate()
        assert worker.wait() == 0, worker.log()


def applied(target: Database) -> int:
    [(there,)] = target.execute("SELECT to_regclass('public.t') IS NOT NULL")
    return target.execute("SELECT count(*) FROM t")[0][0] if there else 0


def arguments_of(pid: int) -> str:
    """Of the process and of all that it started."""
    process = psutil.Process(pid)
    return "".join(Path(f"/proc/{each.pid}/cmdline").read_text() for each in (process, *process.children(recursive=True)))
