"""PGSync, the program that the variable PGSYNC names: PyPI has it as ``pgsync``. It wants an environment of its own."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from benchmarks.rival_process import RivalProcess
from tests.servers import Database
from tests.servers.child import HOST, ChildProcess
from tests.servers.opensearch import SearchServer

VARIABLE = "PGSYNC"


class PgSync(RivalProcess):
    """Makes documents of ``columns`` of a table, those that are there and then each change, in the index ``index``. It reads the
    WAL (``--wal``), which needs no triggers and no Redis; otherwise it has its defaults."""

    def __init__(self, source: Database, table: str, columns: list[str], server: SearchServer, index: str) -> None:
        super().__init__("pgsync")
        at = source.settings
        node = {"table": table, "schema": "public", "columns": columns}
        self._schema = [{"database": at.dbname, "index": index, "nodes": node}]
        self._environment = {
            "PG_HOST": at.host,
            "PG_PORT": str(at.port),
            "PG_USER": at.user,
            "PG_PASSWORD": at.password or "unused",
            "ELASTICSEARCH": "false",
            "OPENSEARCH": "true",
            "ELASTICSEARCH_HOST": HOST,
            "ELASTICSEARCH_PORT": str(server.port),
            "CHECKPOINT_PATH": str(self.directory),
            "CONSOLE_LOGGING_HANDLER_MIN_LEVEL": "INFO",
        }

    def _start(self, directory: Path, log: Path) -> ChildProcess:
        (directory / "schema.json").write_bytes(orjson.dumps(self._schema))
        command = [os.environ[VARIABLE], "--config", "schema.json", "--bootstrap", "--wal"]
        return ChildProcess(command, log_path=log, cwd=directory, env=os.environ | self._environment)
