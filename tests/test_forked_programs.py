"""Processes of the program that tests fork, and the Spark that these borrow: they must be as good as fresh ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path

import psutil
import pytest

from tests.borrowed_spark import borrowed_spark
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.lent_spark import lender
from tests.waiting import wait_until

DAEMON = "pgsluice.worker.spark_daemon"


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_process_has_its_own_session_directory_and_exit_code(is_fresh: bool) -> None:
    with PgsluiceProcess("replicator", config={"group": "o"}, is_fresh=is_fresh) as process:
        assert os.getsid(process.pid) == process.pid
        assert process.wait() == 2
        assert "nats-url is not set" in process.log()
        assert process.stdout() == ""


def test_a_forked_process_that_is_killed_ends_by_the_signal(nats_server: NatsServer, group: str) -> None:
    with PgsluiceProcess("status", "--watch", config={"group": group, "nats-url": nats_server.url}) as process:
        assert psutil.pid_exists(process.pid)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not psutil.pid_exists(process.pid)


@pytest.fixture
def keys(group: str, source_database: Database, target_database: Database, nats_server: NatsServer) -> dict[str, object]:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    keys = configuration(group, source_database, target_database, nats_server)
    succeed(replicate(keys))
    return keys


def lent_jvms() -> set[int]:
    """Those that are there, whoever has them."""
    return {child.pid for child in psutil.Process().children(recursive=True) if _holds_spark(child)}


def _holds_spark(process: psutil.Process) -> bool:
    try:
        return "lent_spark" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_a_jvm_serves_one_process_after_the_other(keys: dict[str, object]) -> None:
    succeed(apply(keys))
    there = lent_jvms()
    succeed(apply(keys))
    assert lent_jvms() == there


def test_a_jvm_dies_with_a_process_that_was_killed(keys: dict[str, object]) -> None:
    succeed(apply(keys))
    there = lent_jvms()
    with PgsluiceProcess("worker", "postgres", config=keys) as worker:
        worker.wait_for_log("reading")
        worker.kill()
    wait_until(lambda: len(lent_jvms()) < len(there), what="end of the JVM that was lent")


def test_a_jvm_dies_with_a_process_that_was_killed_before_the_jvm_had_started() -> None:
    there = lent_jvms()
    with socket.socket(socket.AF_UNIX) as borrower:
        borrower.connect(lender.address)
        settings = {"spark.master": "local[1]", "spark.driver.memory": "513m", "spark.python.daemon.module": DAEMON}
        borrower.sendall(json.dumps(settings).encode() + b"\n")
        wait_until(lambda: lent_jvms() - there, what="a JVM")
    wait_until(lambda: not lent_jvms() - there, what="its end")


def test_a_borrower_leaves_no_thread_behind_whether_its_jvm_lives_on_or_was_killed() -> None:
    """One that looks after a closed socket without a pause takes a processor from all tests that follow."""
    before = set(threading.enumerate())
    with borrowed_spark() as spark:
        assert spark.run_tasks(list, [b"a"]) == [97]
    with borrowed_spark() as spark:
        assert spark.process_id is not None
        os.kill(spark.process_id, signal.SIGKILL)
        wait_until(lambda: spark.has_died, what="the JVM's end")
    wait_until(
        lambda: not [each for each in set(threading.enumerate()) - before if "serve_forever" in each.name], what="threads' end"
    )


def test_a_jvm_that_was_killed_while_nobody_had_it_is_not_lent(keys: dict[str, object]) -> None:
    succeed(apply(keys))
    for holder in lent_jvms():
        for jvm in psutil.Process(holder).children():
            jvm.kill()
    succeed(apply(keys))


def test_a_fresh_process_borrows_nothing(keys: dict[str, object]) -> None:
    with PgsluiceProcess("worker", "postgres", "--until-sequence", "current", config=keys, is_fresh=True) as worker:
        java = wait_until(
            lambda: [each for each in psutil.Process(worker.pid).children() if each.name() == "java"], what="its JVM"
        )
        assert java
        assert worker.wait() == 0
    assert Path(lender.address).exists()
