"""One pgsluice group in a benchmark: its configuration, its processes, and what their logs say."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from benchmarks.servers import Servers
from pgsluice.shared.wire.position import LSN, format_lsn
from tests.end_to_end.group_under_test import configuration
from tests.servers import Database, PgsluiceProcess

DEADLINE_S = 600.0


class Group:
    """Runs with the options' defaults, Spark on all cores with its default memory, but for ``keys`` of the configuration."""

    def __init__(self, name: str, servers: Servers, source: Database, target: Database, **keys: Any) -> None:
        self.source = source
        self.target = target
        self._configuration = configuration(name, source, target, servers.nats, **{"spark": {}} | keys)

    @property
    def name(self) -> str:
        return str(self._configuration["group"])

    def replicator(self, *flags: str) -> PgsluiceProcess:
        """Not started."""
        return PgsluiceProcess("replicator", *flags, config=self._configuration)

    def worker(self) -> PgsluiceProcess:
        """Not started."""
        return PgsluiceProcess("worker", "postgres", config=self._configuration)

    def command(self, *arguments: str) -> PgsluiceProcess:
        """Another command of the group. Not started."""
        return PgsluiceProcess(*arguments, config=self._configuration)

    def publish_until(self, lsn: LSN | None = None) -> None:
        """Runs a replicator until everything before ``lsn`` (None: everything) is published; the first run makes the slot."""
        with self.replicator("--until-lsn", "current" if lsn is None else format_lsn(lsn)) as replicator:
            finish(replicator)

    def drop(self) -> None:
        """What the group made at the source and in NATS, and its target database."""
        with PgsluiceProcess("drop", "--yes", config=self._configuration) as process:
            finish(process)
        self.target.drop()


def finish(process: PgsluiceProcess) -> None:
    """Waits for the end of a process that ends by itself, or was asked to; raises when that was not a good end."""
    exit_code = process.wait(DEADLINE_S)
    if exit_code != 0:
        raise RuntimeError(f"a pgsluice process ended with exit code {exit_code}:\n{process.log()[-4000:]}")


def stop(*processes: PgsluiceProcess) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        finish(process)


def logged_at(process: PgsluiceProcess, message: str) -> float:
    """The time (``time.time``) of the first log line with ``message``, which is waited for."""
    process.wait_for_log(message)
    line = next(line for line in process.log().splitlines() if message in line)
    return datetime.fromisoformat(line.split(" ", 1)[0]).timestamp()
