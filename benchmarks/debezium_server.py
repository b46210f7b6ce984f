"""Debezium Server, unpacked where the variable DEBEZIUM_SERVER says: Maven has it as io.debezium:debezium-server-dist, tar.gz."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.rival_process import RivalProcess
from tests.servers import Database
from tests.servers.child import ChildProcess, free_port
from tests.servers.maven import java

VARIABLE = "DEBEZIUM_SERVER"
PREFIX = "dbz"
"""What its topics and subjects begin with."""


class DebeziumServer(RivalProcess):
    """Streams the tables of ``source`` from now on, without a copy; JSON without schemas. ``sink`` are its properties without
    ``debezium.sink.``. Otherwise as its documentation sets it up."""

    def __init__(self, source: Database, slot: str, sink: Mapping[str, str]) -> None:
        super().__init__("debezium")
        at = source.settings
        properties = {
            "source.connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "source.offset.storage.file.filename": "offsets.dat",
            "source.offset.flush.interval.ms": "1000",
            "source.database.hostname": at.host,
            "source.database.port": str(at.port),
            "source.database.user": at.user,
            "source.database.password": at.password or "unused",
            "source.database.dbname": at.dbname,
            "source.topic.prefix": PREFIX,
            "source.plugin.name": "pgoutput",
            "source.slot.name": slot,
            "source.publication.name": slot,
            "source.snapshot.mode": "no_data",
            "format.key": "json",
            "format.value": "json",
            "format.key.schemas.enable": "false",
            "format.value.schemas.enable": "false",
        } | {f"sink.{name}": value for name, value in sink.items()}
        self._properties = {f"debezium.{name}": value for name, value in properties.items()}
        self._properties |= {"quarkus.http.port": str(free_port()), "quarkus.log.console.json": "false"}

    def _start(self, directory: Path, log: Path) -> ChildProcess:
        home = Path(os.environ[VARIABLE])
        (directory / "config").mkdir()
        lines = (f"{name}={value}\n" for name, value in self._properties.items())
        (directory / "config" / "application.properties").write_text("".join(lines))
        [runner] = home.glob("debezium-server-*runner.jar")
        command = [java(), "-cp", f"{runner}:{home}/lib/*", "io.debezium.server.Main"]
        return ChildProcess(command, log_path=log, cwd=directory)
