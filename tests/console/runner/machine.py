"""A machine that runs groups: a source, a broker, and ``pgsluice server --run`` that may be killed at any time."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.console.server.served import Served
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

PASSWORD = "m4rk3r-of-the-source"


class Machine:
    """Groups are streamed from ``source`` unless their document says something else."""

    def __init__(self, nats: NatsServer, source: Database, directory: Path) -> None:
        self._nats = nats
        self._source = source
        self.server = Served(nats.url, directory, "--run", env={"SOURCE_PASSWORD": source.settings.password or "none"})
        self.groups_directory = self.server.state_directory / "groups"

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Ends what would go on without its server."""
        self.server.process.close()
        for process in self.processes():
            process.kill()
        psutil.wait_procs(self.processes(), timeout=10)

    def document(self, group: str, **options: Any) -> str:
        settings = self._source.settings
        given = {
            "group": group,
            "nats-url": self._nats.url,
            "host": settings.host,
            "port": settings.port,
            "dbname": settings.dbname,
            "user": settings.user,
            "password": "${SOURCE_PASSWORD}",
        } | {name.replace("_", "-"): value for name, value in options.items()}
        return "".join(f"{name}: {json.dumps(value)}\n" for name, value in given.items())

    def apply(self, *documents: str) -> None:
        with self.server.client() as client:
            answer = client.post("/apply", json={"documents": list(documents)})
            assert answer.status_code == 200, answer.text

    def processes(self, group: str = "") -> list[psutil.Process]:
        """Replicators and workers of our groups that live, without what they start."""
        found, folder = [], os.fsencode(self.groups_directory)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                command = path.read_bytes()  # empty when it is a zombie
                if folder in command and b"pgsluice.console.program" in command:
                    configuration = Path(os.fsdecode(command.rstrip(b"\0").rpartition(b"\0")[2]))
                    if configuration.is_relative_to(self.groups_directory) and group in ("", configuration.parent.name):
                        found.append(psutil.Process(int(path.parent.name)))
        return found

    def wait_for_processes(self, group: str, count: int, *, other_than: int = 0) -> list[psutil.Process]:
        """Those of the group, when there are so many, none of them with that number."""

        def is_right(processes: list[psutil.Process]) -> bool:
            return len(processes) == count and all(process.pid != other_than for process in processes)

        def found() -> tuple[list[psutil.Process]] | None:
            processes = self.processes(group)
            return (processes,) if is_right(processes) else None

        return wait_until(found, deadline_s=300, what=f"{count} processes of {group}", interval_s=0.1)[0]
