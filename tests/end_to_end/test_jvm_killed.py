"""Spark's JVM dies under a worker, or under a copy: the process ends with 75, and the next one goes on."""

from __future__ import annotations

import psutil
import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until


def kill_jvm(process: PgsluiceProcess) -> None:
    def jvms() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children(recursive=True)
        return [child for child in children if child.name() == "java"]

    wait_until(jvms, deadline_s=60, what="a JVM")[0].kill()


def assert_said(process: PgsluiceProcess) -> None:
    assert process.wait(90) == 75
    assert "JVM ended" in process.log() or "Spark did not start" in process.log()
    assert "Traceback" not in process.log()


@pytest.mark.long
def test_a_copy_whose_jvm_is_killed_ends_with_75_and_the_next_one_goes_on(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    """In one process: ``tests/replicator/snapshot/test_killed_jvm.py``."""
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    source_database.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 15000) n")
    keys = configuration(group, source_database, None, nats_server, **{"copy-and-stream": True, "copy-range-bytes": "128KiB"})
    with PgsluiceProcess("replicator", config=keys, is_fresh=True) as replicator:
        replicator.wait_for_log("copying tables")
        kill_jvm(replicator)
        assert_said(replicator)
        replicator.start()
        replicator.wait_for_log("copy is finished")


@pytest.mark.timeout(600)
def test_a_worker_whose_jvm_is_killed_ends_with_75_and_the_next_one_goes_on(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source, target = source_database, target_database
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    keys = configuration(group, source, target, nats_server)
    with GroupUnderTest(keys, is_fresh=True) as under_test:
        under_test.replicator.wait_for_log("replicating")
        source.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 15000) n")
        kill_jvm(under_test.worker)
        assert_said(under_test.worker)
        under_test.worker.start()
        counts = "SELECT count(*), sum(id) FROM t"
        wait_until(lambda: target.execute(counts) == source.execute(counts), deadline_s=120, what="equal tables", interval_s=0.5)
        kill_jvm(under_test.worker)
        assert_said(under_test.worker)
