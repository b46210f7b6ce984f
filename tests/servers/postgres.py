"""A real PostgreSQL server of any supported version."""

from __future__ import annotations

import ctypes
import functools
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus

from pgsluice.shared.config.settings import PostgresSettings
from tests.servers.child import HOST, ChildProcess, PrivateDirectory, unprivileged_user
from tests.servers.postgres_binaries import NEWEST, binaries
from tests.servers.server_process import ServerProcess

SUPERUSER = "postgres"

Connection = psycopg.Connection[tuple[Any, ...]]

DEFAULT_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "30",
    "max_replication_slots": "30",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "dynamic_shared_memory_type": "mmap",  # inside the data directory, so nothing stays in /dev/shm after a SIGKILL
    "logging_collector": "off",
}
FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off"}
"""Safe against SIGKILL of the server, which loses nothing that was written to the kernel; not against a power cut."""

_IPC_RMID = 0
_ONLY_READS = re.compile(
    r"(?is)\s*SELECT\b(?!.*(;|\b(set_config|current_setting|currval|lastval|pg_stat_activity|pg_backend_pid|pg_terminate_backend"
    r"|\w*advisory\w*|pg_create_\w+)\b))"
)
"""Statements that neither depend on a session nor leave anything in one, nor look at sessions."""
_NEEDS_OWN_SESSION = re.compile(
    r"(?i)\b(ALTER\s+(ROLE|USER|DATABASE|SYSTEM)|LOAD|dblink\w*|pg_replication_origin_\w+|pg_create_\w+|pg_stat_\w+"
    r"|pg_backend_pid|pg_terminate_backend)\b"
)
"""Statements that leave in a session what DISCARD ALL does not take from it, that change what a new session begins with, or that
look at sessions."""


@functools.cache
def _template(version: int, password: str | None) -> Path:
    """An initialised data directory to copy: initdb runs once per process, version and password."""
    user = unprivileged_user()
    directory = PrivateDirectory("template", user)
    data = directory.path / "data"
    authentication = ["--auth=trust"]
    if password is not None:
        password_file = directory.path / "password"
        password_file.write_text(password + "\n")
        password_file.chmod(0o644)
        authentication = ["--auth=scram-sha-256", f"--pwfile={password_file}"]
    command: list[str] = [
        str(binaries(version) / "initdb"),
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        "--no-locale",
        "--no-sync",
        *authentication,
    ]
    finished = subprocess.run(
        command,
        user=None if user is None else user.pw_uid,
        group=None if user is None else user.pw_gid,
        extra_groups=None if user is None else [],
        cwd=directory.path,
        capture_output=True,
        text=True,
    )
    if finished.returncode != 0:
        raise RuntimeError(f"initdb failed with exit code {finished.returncode}: {finished.stderr}")
    return data


def _copy_tree(source: Path, destination: Path, owner: pwd.struct_passwd | None) -> None:
    shutil.copytree(source, destination)
    destination.chmod(0o700)
    if owner is not None:
        for directory, _, names in os.walk(destination):
            for path in (directory, *(os.path.join(directory, name) for name in names)):
                os.chown(path, owner.pw_uid, owner.pw_gid)


class PostgresServer(ServerProcess):
    """One server with its own data directory.

    Connections come over TCP as superuser ``postgres``; without ``password`` everybody is trusted who reaches ``host``, an
    address of this machine. ``settings`` are server parameters, over the defaults above. ``durable`` keeps fsync on; ``version``
    is the major one. After ``kill`` the next start is a crash recovery.
    """

    title = "PostgreSQL"
    purpose = "postgres"
    start_deadline_s = 60.0
    user = SUPERUSER

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        durable: bool = False,
        password: str | None = None,
        version: int = NEWEST,
        port: int = 0,
        host: str = HOST,
    ) -> None:
        super().__init__(port, host)
        self.version = version
        self.settings = DEFAULT_SETTINGS | {"listen_addresses": host} | ({} if durable else FAST_SETTINGS) | dict(settings or {})
        self.password = password or ""
        self._kept: dict[str, Connection] = {}

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def _new_directory(self) -> PrivateDirectory:
        user = unprivileged_user()
        private = PrivateDirectory(self.purpose, user)
        data = private.path / "data"
        _copy_tree(_template(self.version, self.password or None), data, user)
        if self.host != HOST and not self.password:
            with (data / "pg_hba.conf").open("a") as rules:  # initdb's are for loopback addresses only
                rules.write("host all,replication all all trust\n")
        return private

    def _spawn(self, directory: Path, log: Path) -> ChildProcess:
        options = [f"--{name}={value}" for name, value in (self.settings | {"port": str(self.port)}).items()]
        return ChildProcess(
            [str(binaries(self.version) / "postgres"), "-D", str(self.data_directory), *options],
            log_path=log,
            cwd=directory,
            user=unprivileged_user(),
            orphan_signal=signal.SIGQUIT,
        )

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, number: int = signal.SIGINT) -> None:
        """By the signals of pg_ctl's modes: SIGTERM smart, SIGINT fast, SIGQUIT immediate."""
        for dbname in list(self._kept):
            self.close_session(dbname)
        super().stop(number)

    def copy(self, host: str) -> PostgresServer:
        """Another server, not started, with the data of this one, which must be stopped; at the same port of another address of
        this machine."""
        other = PostgresServer(self.settings | {"listen_addresses": host}, version=self.version)
        other.host, other.port = host, self.port
        shutil.rmtree(other.data_directory)
        _copy_tree(self.data_directory, other.data_directory, unprivileged_user())
        return other

    def close(self) -> None:
        if self._private is not None:
            self.stop(signal.SIGQUIT)
            _free_shared_memory(self.data_directory / "postmaster.pid")
        super().close()

    def dsn(self, dbname: str = "postgres") -> str:
        parameters = {"host": self.host, "port": str(self.port), "user": self.user, "dbname": dbname}
        return psycopg.conninfo.make_conninfo(**parameters, **({"password": self.password} if self.password else {}))

    def settings_for(self, dbname: str) -> PostgresSettings:
        return PostgresSettings(
            host=self.host,
            port=self.port,
            dbname=dbname,
            user=self.user,
            password=self.password,
            sslmode="",
            sslrootcert="",
            sslcert="",
            sslkey="",
            channel_binding="",
        )

    def connect(self, dbname: str = "postgres", autocommit: bool = True) -> Connection:
        return psycopg.connect(self.dsn(dbname), autocommit=autocommit, connect_timeout=10)

    @contextmanager
    def session(self, dbname: str) -> Iterator[Connection]:
        """One that is kept for the next call, as it began: a new session costs twenty times its statement."""
        connection = self._kept.pop(dbname, None)
        if connection is None or not _is_alive(connection):
            connection = self.connect(dbname)
            connection.prepare_threshold = None  # tables are altered between the statements
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._kept.setdefault(dbname, connection) is not connection:
            connection.close()

    def close_session(self, dbname: str) -> None:
        if (connection := self._kept.pop(dbname, None)) is not None:
            connection.close()

    def create_database(self, name: str) -> Database:
        """By copying files where it can be chosen: half the work of copying pages through the WAL, for one that is small."""
        strategy = sql.SQL(" STRATEGY file_copy" if self.version >= 15 else "")
        with self.session("postgres") as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + strategy)
        return Database(self, name)


def _is_alive(connection: Connection) -> bool:
    """Whether the server has not ended it: what it sends to a session that does nothing is its end."""
    is_readable, _, _ = select.select([connection.fileno()], [], [], 0)
    return not is_readable


def _free_shared_memory(pid_file: Path) -> None:
    """Removes the System V segment that a killed server left: its id is the last number of the file's 7th line
    (src/include/utils/pidfile.h)."""
    if not pid_file.exists():
        return
    lines = pid_file.read_text().splitlines()
    if len(lines) >= 7 and lines[6].split():
        ctypes.CDLL(None).shmctl(int(lines[6].split()[-1]), _IPC_RMID, None)


@dataclass(frozen=True, slots=True)
class Database:
    """One database of a server."""

    server: PostgresServer
    dbname: str

    @property
    def settings(self) -> PostgresSettings:
        return self.server.settings_for(self.dbname)

    def connect(self, autocommit: bool = True) -> Connection:
        return self.server.connect(self.dbname, autocommit)

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Runs one statement (or several without parameters) as a new session would; the rows of the last one, if any."""
        only_reads = _ONLY_READS.match(statement) is not None
        is_apart = not only_reads and _NEEDS_OWN_SESSION.search(statement) is not None
        with self.connect() if is_apart else self.server.session(self.dbname) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            result = cursor.pgresult
            rows = cursor.fetchall() if result is not None and result.status == ExecStatus.TUPLES_OK else []
            if not only_reads and not is_apart:
                connection.execute("DISCARD ALL")
        return rows

    def drop(self) -> None:
        """Drops the database, its replication slots and its connections; may be called twice."""
        self.server.close_session(self.dbname)
        with self.server.session("postgres") as connection:
            slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s AND NOT temporary"
            for slot_name, active_pid in connection.execute(slots, [self.dbname]).fetchall():
                if active_pid is not None:
                    connection.execute("SELECT pg_terminate_backend(%s, 10000)", [active_pid])
                connection.execute("SELECT pg_drop_replication_slot(%s)", [slot_name])
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.dbname)))
