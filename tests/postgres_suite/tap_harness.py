"""What the Perl module ``PostgreSQL::Test::Cluster`` of ``perl/`` asks for: servers, psql, and groups for subscriptions.

It speaks JSON lines over a socket of this machine, one question after the other. What subscriptions have and groups do not is
answered with a note, which the file's output shows.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psycopg

from tests.postgres_suite.subscription import Statement, Subscription, parts_of
from tests.servers import Database, NatsServer, PostgresServer
from tests.servers.child import HOST
from tests.servers.postgres_binaries import binaries
from tests.waiting import DeadlineError, wait_until

_IN_FILE = ("wal_level", "max_wal_senders", "max_replication_slots")
"""Settings that files change, so they are not given on the command line, which counts more."""
_OF_SUBSCRIPTIONS = re.compile(r"\bpg_(?:stat_)?subscription", re.IGNORECASE)
_OF_TABLES = re.compile(r"\b(?:CREATE|ALTER)\s+(?:TABLE|PUBLICATION)", re.IGNORECASE)
_CALLED = re.compile(
    r"(application_name\s*=\s*|slot_name\s*=\s*|synchronous_standby_names\s+TO\s+|pg_logical_slot_\w+\(\s*)'(\w+)'", re.IGNORECASE
)
_DROPPED = re.compile(r"\b(DROP\s+DATABASE\s+\w+)", re.IGNORECASE)
"""Tasks of a lent Spark keep their sessions for a while after their worker has ended."""
POLL_DEADLINE_S = 60.0


@dataclass
class Node:
    server: PostgresServer
    subscriptions: dict[tuple[str, str], Subscription] = field(default_factory=dict)
    """By database and name."""

    sessions: list[psycopg.Connection[tuple[Any, ...]]] = field(default_factory=list)
    latin: bool = False

    @property
    def configuration(self) -> Path:
        return self.server.data_directory / "postgresql.conf"


class TapHarness:
    """The nodes of one file, of one PostgreSQL version."""

    def __init__(self, version: int, nats: NatsServer) -> None:
        self._version, self._nats = version, nats
        self._nodes: dict[str, Node] = {}
        self._notes: list[str] = []
        self._listening = socket.create_server((HOST, 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.close()
        for node in self._nodes.values():
            for subscription in node.subscriptions.values():
                subscription.close()
        for node in self._nodes.values():
            for session in node.sessions:
                session.close()
            node.server.close()

    def _serve(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:  # closed before the file asked for anything
            return
        with connection, connection.makefile("rwb") as lines:
            for line in lines:
                question = orjson.loads(line)
                lines.write(orjson.dumps(self._answer(question)) + b"\n")
                lines.flush()

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        self._notes = []
        call: Callable[..., Any] = getattr(self, f"_{question['call']}")
        try:
            value = call(question["node"], *question["arguments"])
        except Exception as error:  # noqa: BLE001 - the file is told, and dies of it
            return {"error": f"{question['call']}: {error}", "notes": self._notes}
        return {"value": value, "notes": self._notes}

    def _new(self, name: str) -> None:
        server = PostgresServer(version=self._version)
        for setting in _IN_FILE:
            server.settings.pop(setting)
        self._nodes[name] = Node(server)

    def _init(self, name: str, extra: list[str]) -> None:
        node = self._nodes[name]
        node.latin = "--encoding=LATIN1" in extra
        self._append_conf(name, "postgresql.conf", "wal_level = logical\nmax_wal_senders = 20\nmax_replication_slots = 20\n")

    def _append_conf(self, name: str, file: str, text: str) -> None:
        with (self._nodes[name].server.data_directory / file).open("a") as conf:
            conf.write(f"\n{text}\n")

    def _start(self, name: str) -> None:
        node = self._nodes[name]
        node.server.start()
        if node.latin:
            with node.server.connect("template1") as connection:
                connection.execute("DROP DATABASE postgres")
                connection.execute("CREATE DATABASE postgres ENCODING 'LATIN1' TEMPLATE template0")
            node.latin = False

    def _stop(self, name: str) -> None:
        """Groups go on, as subscriptions of other nodes do; those of this node have nothing to write to."""
        self._nodes[name].server.stop()

    def _reload(self, name: str) -> None:
        with self._nodes[name].server.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")

    def _rotate_logfile(self, name: str) -> None:
        """Files give the place from which they read."""

    def _logfile(self, name: str) -> str:
        return str(self._nodes[name].server.directory / "log")

    def _data_dir(self, name: str) -> str:
        return str(self._nodes[name].server.data_directory)

    def _host(self, name: str) -> str:
        return self._nodes[name].server.host

    def _port(self, name: str) -> int:
        return self._nodes[name].server.port

    def _psql(
        self, name: str, dbname: str, script: str, stops: bool, extra: list[str], connstr: str | None = None
    ) -> dict[str, Any]:
        """Each part of the script in its order; statements about subscriptions by groups."""
        stdout, stderr, code = "", "", 0
        for part in parts_of(script):
            if isinstance(part, Statement):
                self._about_subscription(name, dbname, part)
                continue
            finished = self._run_psql(name, dbname, part, stops, extra, connstr)
            stdout, stderr, code = stdout + finished.stdout, stderr + finished.stderr, finished.returncode
            if code and stops:
                break
        if _OF_TABLES.search(script):
            for each in self._nodes.values():
                for subscription in each.subscriptions.values():
                    if subscription.reads_from(self._nodes[name].server):
                        subscription.follow()
        return {"code": code, "stdout": stdout, "stderr": stderr}

    def _run_psql(
        self, name: str, dbname: str, script: str, stops: bool, extra: list[str], connstr: str | None
    ) -> subprocess.CompletedProcess[str]:
        server = self._nodes[name].server
        address = connstr or server.dsn(dbname)
        command = [str(binaries() / "psql"), "-XAtq", "-d", address, "-f", "-", "-v", f"ON_ERROR_STOP={int(bool(stops))}", *extra]
        environment = {"PATH": os.environ["PATH"], "LANG": "C", "LC_MESSAGES": "C"}
        return subprocess.run(
            command,
            input=self._with_slots(script),
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            env=environment,
            timeout=600,
        )

    def _with_slots(self, script: str) -> str:
        """With the names of groups' slots, as their connections are called too, for those of subscriptions."""
        script = _DROPPED.sub(r"\1 WITH (FORCE)", script)
        slots = {each.walsender_name: each.slot for node in self._nodes.values() for each in node.subscriptions.values()}
        return _CALLED.sub(lambda found: f"{found[1]}'{slots.get(found[2], found[2])}'", script)

    def _about_subscription(self, name: str, dbname: str, statement: Statement) -> None:
        node = self._nodes[name]
        if statement.verb == "CREATE":
            subscription = Subscription(statement.name, Database(node.server, dbname), self._nats, self._notes.append)
            node.subscriptions[dbname, statement.name] = subscription
            subscription.create(statement.rest)
            return
        subscription = node.subscriptions.pop((dbname, statement.name))
        if statement.verb == "DROP":
            subscription.drop()
            return
        try:
            subscription.alter(statement.rest)
        finally:
            node.subscriptions[dbname, subscription.name] = subscription

    def _poll_query_until(self, name: str, dbname: str, query: str, expected: str) -> bool:
        if _OF_SUBSCRIPTIONS.search(query):
            self._notes.append(f"not waited for, a group has none of it: {' '.join(query.split())}")
            return True

        def answers() -> bool:
            return self._run_psql(name, dbname, query, True, [], None).stdout.rstrip("\n") == expected

        try:
            return wait_until(answers, deadline_s=POLL_DEADLINE_S, what=query, interval_s=0.2)
        except DeadlineError:
            return False

    def _wait_for_catchup(self, name: str, subscription: str) -> None:
        """Of a subscription that reads from the node: names come again at others."""
        source = self._nodes[name].server
        found = [
            each
            for node in self._nodes.values()
            for each in node.subscriptions.values()
            if each.reads_from(source) and subscription in (each.name, each.walsender_name)
        ]
        if not found:
            raise LookupError(f"nobody made the subscription {subscription}")
        for each in found:
            each.wait_for_catchup()

    def _wait_for_subscription_sync(self, name: str) -> None:
        for subscription in self._nodes[name].subscriptions.values():
            subscription.wait_for_catchup()

    def _background_psql(self, name: str, dbname: str) -> int:
        sessions = self._nodes[name].sessions
        sessions.append(self._nodes[name].server.connect(dbname))
        return len(sessions) - 1

    def _query_safe(self, name: str, session: int, script: str) -> str:
        """Files ask sessions that have quit, which PostgreSQL's module starts again."""
        node = self._nodes[name]
        if node.sessions[session].closed:
            node.sessions[session] = node.server.connect()
        cursor = node.sessions[session].execute(script.encode())
        if cursor.description is None:
            return ""
        return "\n".join("|".join("" if value is None else str(value) for value in row) for row in cursor.fetchall())

    def _quit(self, name: str, session: int) -> None:
        self._nodes[name].sessions[session].close()
