"""Stopping as supervisors and terminals do it: a signal to the process group, or to every process of the service."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.child import signal_tree
from tests.servers.program import REPOSITORY
from tests.waiting import wait_until

ROWS = 200_000  # several tasks, and lines that are far more than a pipe holds
SPARK_DEADLINE_S = 120.0
PIPE_BYTES = 64 * 1024


@pytest.fixture
def filled(source_database: Database, nats_server: NatsServer, group: str) -> dict[str, object]:
    """The configuration of a group whose stream holds ROWS inserts of one transaction."""
    keys = configuration(group, source_database, None, nats_server)
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    succeed(replicate(keys))
    source_database.execute(f"INSERT INTO a SELECT generate_series(1, {ROWS})")
    succeed(replicate(keys))
    return keys


@pytest.fixture
def worker(filled: dict[str, object]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker whose standard output nobody reads yet: its first batch stays in hand."""
    files = PgsluiceProcess(config=filled)  # not started: its configuration file is what is used
    command = [sys.executable, "-m", "pgsluice.console.program", "worker", "stdout", "--config", str(files.config_path)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        start_new_session=True,
    )
    with process:
        yield process
        process.kill()
    files.close()


def wait_for_batch(worker: subprocess.Popen[bytes]) -> None:
    """Returns when the pipe is full, or nearly: the driver hands lines over while tasks make more."""
    output, log = worker.stdout, worker.stderr
    assert output is not None
    assert log is not None
    waiting = bytearray(4)

    def is_full() -> bool:
        fcntl.ioctl(output.fileno(), termios.FIONREAD, waiting)
        assert worker.poll() is None, log.read().decode()
        return int.from_bytes(waiting, sys.byteorder) > PIPE_BYTES // 2

    wait_until(is_full, deadline_s=SPARK_DEADLINE_S, what="a batch in hand")


@pytest.mark.parametrize("everybody", [False, True], ids=["the process group", "every process"])
def test_a_signal_to_all_processes_of_a_worker_lets_it_finish_the_batch_in_hand(
    worker: subprocess.Popen[bytes], filled: dict[str, object], everybody: bool
) -> None:
    wait_for_batch(worker)
    if everybody:
        signal_tree(worker.pid, signal.SIGTERM)
    else:
        os.killpg(worker.pid, signal.SIGTERM)
    output, log = worker.communicate(timeout=SPARK_DEADLINE_S)
    assert worker.returncode == 0, log.decode()
    assert b"Traceback" not in log
    assert len(output.splitlines()) == ROWS
    assert json.loads(output.splitlines()[-1])["after"] == {"id": ROWS}
    assert succeed(apply(dict(filled), "stdout")).stdout == "", "the position has not moved"


WHEN = {"waiting": (signal.SIGTERM,), "reading": (signal.SIGINT, signal.SIGHUP)}
"""The signals of which one moment each is tried in every run: all have the same handler, and it the same places to look from."""


@pytest.mark.parametrize(
    ("log_line", "number"),
    [
        pytest.param(line, number, id=f"{line}-{number.name}", marks=() if number in numbers else pytest.mark.long)
        for line, numbers in WHEN.items()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    ],
)
def test_a_worker_ends_with_0_whenever_all_its_processes_get_a_signal(
    source_database: Database, nats_server: NatsServer, group: str, log_line: str, number: signal.Signals
) -> None:
    keys = configuration(group, source_database, None, nats_server)
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    if log_line == "reading":
        succeed(replicate(keys))
    with PgsluiceProcess("worker", "stdout", config=keys, is_fresh=True) as worker:
        worker.wait_for_log(log_line, SPARK_DEADLINE_S)
        worker.signal_all(number)
        assert worker.wait() == 0, worker.log()
        assert "Traceback" not in worker.log()


def test_a_copying_replicator_ends_with_0_when_all_its_processes_get_a_signal(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, None, nats_server, **{"copy-and-stream": True, "copy-range-bytes": "8KiB"})
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a SELECT generate_series(1, 500000)")
    for log_line in ("starting Spark", "copying tables"):
        with PgsluiceProcess("replicator", config=keys, is_fresh=True) as replicator:
            replicator.wait_for_log(log_line, SPARK_DEADLINE_S)
            replicator.signal_all(signal.SIGTERM)
            assert replicator.wait() == 0, replicator.log()
            assert "Traceback" not in replicator.log()


def test_the_jvm_goes_when_its_driver_is_killed(source_database: Database, nats_server: NatsServer, group: str) -> None:
    keys = configuration(group, source_database, None, nats_server)
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    succeed(replicate(keys))
    with PgsluiceProcess("worker", "stdout", config=keys, is_fresh=True) as worker:
        worker.wait_for_log("reading", SPARK_DEADLINE_S)
        descendants = psutil.Process(worker.pid).children(recursive=True)
        assert any(process.name() == "java" for process in descendants)
        os.kill(worker.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(descendants, timeout=30)
        assert alive == []


def test_a_terminal_that_hangs_up_ends_its_replicator(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    """A SIGHUP from anybody else has it read its configuration again."""
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configuration(group, source_database, None, nats_server)))
    log = tmp_path / "log"
    log.touch()
    program = shlex.join([sys.executable, "-m", "pgsluice.console.program", "replicator", f"--config={tmp_path}/config.yaml"])
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["/bin/sh", "-c", f"cd {REPOSITORY}; exec {program} 2>{log}"])
    wait_until(lambda: "replicating " in log.read_text(), what="the stream")
    os.kill(pid, signal.SIGHUP)
    wait_until(lambda: "the configuration was read again" in log.read_text(), what="the configuration")
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, log.read_text()
