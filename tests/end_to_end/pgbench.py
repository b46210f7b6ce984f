"""pgbench's own tables under a script of inserts, updates and deletes, on a real server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers import Database
from tests.servers.postgres_binaries import binaries

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")

_SCRIPT = r"""
\set aid random(1, 100000 * :scale)
\set new random(100000 * :scale + 1, 400000 * :scale)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = 1 + :aid % (10 * :scale);
INSERT INTO pgbench_accounts VALUES (:new, 1, :delta, 'new') ON CONFLICT (aid) DO UPDATE SET filler = 'again';
DELETE FROM pgbench_accounts WHERE aid = :new - 1 AND aid > 100000 * :scale;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 1, :aid, :delta, CURRENT_TIMESTAMP);
DELETE FROM pgbench_history WHERE ctid IN (SELECT ctid FROM pgbench_history WHERE aid = :aid - 1 LIMIT 1);
COMMIT;
"""


def initialize(database: Database, scale: int) -> None:
    """Fills the tables; the one without a key gets replica identity full, so that it can be published."""
    run(database, "-i", "-q", "-s", str(scale))
    database.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")


class Writers:
    """Four connections that write until ``stop``, or until the context is left: ``rate`` transactions a second, or as many as
    they can."""

    def __init__(self, database: Database, scale: int, directory: Path, rate: int | None = None) -> None:
        script = directory / "writers.sql"
        script.write_text(_SCRIPT)
        self._command = command(database, "-n", "-c", "4", "-j", "1", "-T", "600", "-s", str(scale), "-f", str(script))
        if rate is not None:
            self._command[1:1] = ["-R", str(rate)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return self

    def stop(self) -> None:
        """Ends them; raises when they ended by themselves before."""
        process, self._process = self._process, None
        if process is None:
            return
        still_writing = process.poll() is None
        process.terminate()
        _, complaint = process.communicate()
        assert still_writing, complaint.decode()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


def command(database: Database, *arguments: str) -> list[str]:
    """The program and its arguments, for one who starts it."""
    settings = database.settings
    where = ["-h", settings.host, "-p", str(settings.port), "-U", settings.user, settings.dbname]
    return [str(binaries() / "pgbench"), *arguments, *where]


def run(database: Database, *arguments: str) -> None:
    """Returns when it ended well."""
    subprocess.run(command(database, *arguments), check=True, capture_output=True)
