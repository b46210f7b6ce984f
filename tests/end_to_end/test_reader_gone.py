"""The stdout sink as a process whose reader goes away, as in ``pgsluice worker stdout | head -n 1``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.program import REPOSITORY

ROWS = 20_000  # their lines are more than a pipe holds
EXIT_DEADLINE_S = 60.0


def test_a_worker_whose_reader_goes_away_exits_75_and_repeats_the_batch(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, None, nats_server)
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    succeed(replicate(keys))
    source_database.execute(f"INSERT INTO a SELECT generate_series(1, {ROWS})")
    succeed(replicate(keys))

    files = PgsluiceProcess(config=keys)  # not started: its configuration file is what is used
    command = [sys.executable, "-m", "pgsluice.console.program", "worker", "stdout", "--config", str(files.config_path)]
    worker = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
    )
    with worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        first = json.loads(worker.stdout.readline())
        worker.stdout.close()
        log = worker.stderr.read().decode()
        assert worker.wait(EXIT_DEADLINE_S) == 75, log
    assert first["after"] == {"id": 1}
    assert "the reader of standard output is gone" in log
    assert "Traceback" not in log
    assert len(succeed(apply(keys, "stdout")).stdout.splitlines()) == ROWS
