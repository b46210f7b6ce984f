"""PGSync, the program that the variable PGSYNC names: PyPI has it as ``pgsync``. It wants an environment of its own."""

from __future__ import annotations

import os
import signal
from types import TracebackType
from typing import Self

import orjson

from tests.servers import Database
from tests.servers.child import HOST, STOP_DEADLINE_S, ChildProcess, PrivateDirectory
from tests.servers.opensearch import SearchServer

VARIABLE = "PGSYNC"


class PgSync:
    """Makes documents of ``columns`` of a table, those that are there and then each change, in the index ``index``. It reads the
    WAL (``--wal``), which needs no triggers and no Redis; otherwise it has its defaults."""

    def __init__(self, source: Database, table: str, columns: list[str], server: SearchServer, index: str) -> None:
        at = source.settings
        node = {"table": table, "schema": "public", "columns": columns}
        self._schema = [{"database": at.dbname, "index": index, "nodes": node}]
        self._directory = PrivateDirectory("pgsync")
        self._environment = {
            "PG_HOST": at.host,
            "PG_PORT": str(at.port),
            "PG_USER": at.user,
            "PG_PASSWORD": at.password or "unused",
            "ELASTICSEARCH": "false",
            "OPENSEARCH": "true",
            "ELASTICSEARCH_HOST": HOST,
            "ELASTICSEARCH_PORT": str(server.port),
            "CHECKPOINT_PATH": str(self._directory.path),
            "CONSOLE_LOGGING_HANDLER_MIN_LEVEL": "INFO",
        }
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        directory = self._directory.path
        (directory / "schema.json").write_bytes(orjson.dumps(self._schema))
        command = [os.environ[VARIABLE], "--config", "schema.json", "--bootstrap", "--wal"]
        self._process = ChildProcess(command, log_path=directory / "log", cwd=directory, env=os.environ | self._environment)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._process is not None
        if kind is not None:
            print(self.log()[-6000:])
        self._process.send(signal.SIGTERM)
        self._process.wait(STOP_DEADLINE_S)
        self._directory.remove()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return (self._directory.path / "log").read_text(errors="replace")
