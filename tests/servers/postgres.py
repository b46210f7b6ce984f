"""A real PostgreSQL server of any supported version."""

from __future__ import annotations

import ctypes
import functools
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus

from pgsluice.shared.config.settings import PostgresSettings
from tests.servers.child import HOST, STOP_DEADLINE_S, ChildProcess, PrivateDirectory, free_port, unprivileged_user
from tests.servers.postgres_binaries import NEWEST, binaries
from tests.waiting import wait_until

START_DEADLINE_S = 60.0
START_ATTEMPTS = 5
SUPERUSER = "postgres"

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

_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_IPC_RMID = 0


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


class PostgresServer:
    """One server with its own data directory; ``start`` after ``stop`` or ``kill`` continues on the same data and port.

    Connections come over TCP as superuser ``postgres``; without ``password`` everybody is trusted who reaches ``host``, an
    address of this machine. ``settings`` are server parameters, over the defaults above. ``durable`` keeps fsync on; ``version``
    is the major one. Leaving the context stops the server and removes its data.
    """

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
        self.version = version
        self.host = host
        self.settings = DEFAULT_SETTINGS | {"listen_addresses": host} | ({} if durable else FAST_SETTINGS) | dict(settings or {})
        self.password = password or ""
        self.port = port or free_port()
        self._may_move = port == 0
        self._directory: PrivateDirectory | None = None
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def data_directory(self) -> Path:
        return self._private().path / "data"

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return (self._private().path / "log").read_text(errors="replace")

    def _private(self) -> PrivateDirectory:
        if self._directory is None:
            user = unprivileged_user()
            self._directory = PrivateDirectory("postgres", user)
            data = self._directory.path / "data"
            _copy_tree(_template(self.version, self.password or None), data, user)
            if self.host != HOST and not self.password:
                with (data / "pg_hba.conf").open("a") as rules:  # initdb's are for loopback addresses only
                    rules.write("host all,replication all all trust\n")
        return self._directory

    def start(self) -> None:
        """Returns when the server accepts connections. A port that somebody else took is exchanged, but only before the
        first successful start: later the port is part of what clients know."""
        assert not self.is_running, "the server is running already"
        may_move = self._may_move and self._process is None
        for _ in range(START_ATTEMPTS):
            log_start = self._spawn()
            if wait_until(self._started, deadline_s=START_DEADLINE_S, what="start of PostgreSQL") is True:
                return
            said = self.log()[log_start:]
            if not (may_move and "Address already in use" in said):
                break
            self.port = free_port()
        raise RuntimeError(f"PostgreSQL did not start: {said}")

    def _spawn(self) -> int:
        """Starts the process; returns the length of the log before."""
        directory = self._private().path
        log_path = directory / "log"
        log_length = len(self.log()) if log_path.exists() else 0
        options = [f"--{name}={value}" for name, value in (self.settings | {"port": str(self.port)}).items()]
        self._process = ChildProcess(
            [str(binaries(self.version) / "postgres"), "-D", str(directory / "data"), *options],
            log_path=log_path,
            cwd=directory,
            user=unprivileged_user(),
            orphan_signal=signal.SIGQUIT,
        )
        return log_length

    def _started(self) -> bool | str:
        """True, False ("not yet") or "ended"."""
        assert self._process is not None
        if self._process.poll() is not None:
            return "ended"
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, mode: str = "fast") -> None:
        """A clean stop: ``mode`` is smart, fast or immediate, as pg_ctl has them. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.send(_STOP_SIGNALS[mode])
            self._process.wait(STOP_DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL to the postmaster and all backends: the next start is a crash recovery."""
        if self._process is not None:
            self._process.kill()

    def copy(self, host: str) -> PostgresServer:
        """Another server, not started, with the data of this one, which must be stopped; at the same port of another address of
        this machine."""
        other = PostgresServer(self.settings | {"listen_addresses": host}, version=self.version)
        other.host, other.port = host, self.port
        shutil.rmtree(other.data_directory)
        _copy_tree(self.data_directory, other.data_directory, unprivileged_user())
        return other

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the server and removes its directory."""
        if self._directory is None:
            return
        if self.is_running:
            self.stop("immediate")
        _free_shared_memory(self._directory.path / "data" / "postmaster.pid")
        self._directory.remove()
        self._directory = self._process = None

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

    def connect(self, dbname: str = "postgres", autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.dsn(dbname), autocommit=autocommit, connect_timeout=10)

    def create_database(self, name: str) -> Database:
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return Database(self, name)


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

    def connect(self, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
        return self.server.connect(self.dbname, autocommit)

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Runs one statement (or several without parameters) in a connection of its own; the rows of the last one, if any."""
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), parameters)
            result = cursor.pgresult
            return cursor.fetchall() if result is not None and result.status == ExecStatus.TUPLES_OK else []

    def drop(self) -> None:
        """Drops the database, its replication slots and its connections."""
        with self.server.connect() as connection:
            slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s AND NOT temporary"
            for slot_name, active_pid in connection.execute(slots, [self.dbname]).fetchall():
                if active_pid is not None:
                    connection.execute("SELECT pg_terminate_backend(%s, 10000)", [active_pid])
                connection.execute("SELECT pg_drop_replication_slot(%s)", [slot_name])
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.dbname)))
