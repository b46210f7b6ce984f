"""A server that refuses us in a language that we do not read is understood all the same."""

from __future__ import annotations

import asyncio
import pickle
import re
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from pgsluice.replicator.source import connection as source
from pgsluice.shared.config.declaration import make, part
from pgsluice.shared.config.declaration import settings as declared
from pgsluice.shared.config.load import load_given
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import LoginRefusedError, PgsluiceError, TransientError, UsageError
from pgsluice.shared.postgres import refused_connection
from pgsluice.shared.postgres.refused_connection import (
    LOGIN_PATIENCE_S,
    comes_from_server,
    connection_error,
    note_login,
    refused_sqlstate,
)
from pgsluice.shared.postgres.session_settings import is_unverified
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.target import connection as target
from tests.servers import PostgresServer
from tests.waiting import wait_until

SSL_REQUEST = 80877103


def read_startup(connection: socket.socket) -> None:
    """Reads a client's startup message, as a server does that has no TLS."""
    while True:
        (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        (code,) = struct.unpack_from(">i", connection.recv(length - 4, socket.MSG_WAITALL))
        if code != SSL_REQUEST:
            return
        connection.sendall(b"N")


class GermanDoor(socketserver.BaseRequestHandler):
    """Answers a startup message as PostgreSQL 15.18 does under lc_messages = 'de_DE.utf8', with ``error``."""

    error: ClassVar[tuple[str, str]]

    def handle(self) -> None:
        read_startup(self.request)
        sqlstate, text = self.error
        fields = f"SFATAL\0VFATAL\0C{sqlstate}\0M{text}\0Fauth.c\0L335\0Rauth_failed\0\0".encode()
        self.request.sendall(b"E" + struct.pack(">i", len(fields) + 4) + fields)


@contextmanager
def listening(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """The port at which ``handler`` answers."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def german_door(sqlstate: str, text: str) -> Iterator[PostgresSettings]:
    with listening(type("Handler", (GermanDoor,), {"error": (sqlstate, text)})) as port:
        yield PostgresSettings("127.0.0.1", port, "shop", "ada", "geheim", "", "", "", "", "")


def source_refusal(settings: PostgresSettings) -> PgsluiceError:
    with pytest.raises(PgsluiceError) as raised:
        asyncio.run(source.connect(settings))
    return raised.value


def target_refusal(settings: PostgresSettings) -> PgsluiceError:
    sink = PostgresSinkSettings(
        settings, sync_schema=True, disable_foreign_keys=False, sync_sequences=False, lock_timeout_s=1, on_missing_row="count"
    )
    with pytest.raises(PgsluiceError) as raised:
        target.connect(sink, "test")
    return raised.value


@pytest.mark.parametrize(
    ("sqlstate", "text", "remedy"),
    [
        ("28000", "kein pg_hba.conf-Eintrag für Host »::1«", "pg_hba.conf"),
        ("28000", "Rolle »ada« existiert nicht", "check (target-)?user"),
        ("3D000", "Datenbank »shop« existiert nicht", "check (target-)?dbname"),
        ("42501", "keine Berechtigung für Datenbank »shop«", "CONNECT"),
    ],
)
def test_a_refusal_that_lasts_needs_a_person_in_any_language(sqlstate: str, text: str, remedy: str) -> None:
    with german_door(sqlstate, text) as settings:
        for refusal in (source_refusal(settings), target_refusal(settings)):
            assert type(refusal) is UsageError
            assert text in refusal.fact
            assert re.search(remedy, refusal.remedy)
            assert "geheim" not in str(refusal)


@pytest.mark.parametrize(
    ("sqlstate", "text"),
    [
        ("28P01", "Passwort-Authentifizierung für Benutzer »ada« fehlgeschlagen"),
        ("53300", "tut mir leid, schon zu viele Verbindungen"),
        ("57P03", "das Datenbanksystem startet"),
    ],
)
def test_a_refusal_that_passes_is_tried_again_in_any_language(sqlstate: str, text: str) -> None:
    with german_door(sqlstate, text) as settings:
        assert type(source_refusal(settings)) is TransientError
        assert type(target_refusal(settings)) is TransientError


class PasswordThief(socketserver.BaseRequestHandler):
    """Answers a startup message as a server whose pg_hba.conf says "password", and keeps what it is told then."""

    told: ClassVar[list[bytes]]

    def handle(self) -> None:
        read_startup(self.request)
        self.request.sendall(b"R" + struct.pack(">ii", 8, 3))  # AuthenticationCleartextPassword
        self.told.append(self.request.recv(1000))


ANOTHER_MACHINE = "127.1"
"""An address of this one that does not look so."""


@pytest.mark.parametrize("sslmode", ["", "disable", "prefer"])
def test_a_server_that_shows_no_certificate_is_not_told_the_password(sslmode: str) -> None:
    told: list[bytes] = []
    with listening(type("Handler", (PasswordThief,), {"told": told})) as port:
        settings = PostgresSettings(ANOTHER_MACHINE, port, "shop", "ada", "geheim", sslmode, "", "", "", "")
        for refusal in (source_refusal(settings), target_refusal(settings)):
            assert type(refusal) is UsageError
            assert "sslmode: verify-full" in refusal.remedy
    assert set(told) == {b""}


def test_a_server_on_another_machine_that_asks_for_scram_is_spoken_to(strict_server: PostgresServer) -> None:
    settings = replace(strict_server.create_database("scram").settings, host=ANOTHER_MACHINE)
    assert is_unverified(settings)
    asyncio.run(source_session(settings))


async def source_session(settings: PostgresSettings) -> None:
    connection = await source.connect(settings)
    await connection.close()


@pytest.mark.parametrize(
    ("host", "sslmode", "sslrootcert", "unverified"),
    [
        ("db.example.com", "", "", True),
        ("db.example.com", "require", "", True),
        ("localhost,10.0.0.1", "prefer", "", True),
        ("db.example.com", "verify-ca", "", False),
        ("db.example.com", "", "system", False),
        ("/run/postgresql", "", "", False),
        ("127.0.0.1,::1,localhost", "disable", "", False),
    ],
)
def test_servers_of_this_machine_and_those_that_show_a_certificate_are_no_strangers(
    host: str, sslmode: str, sslrootcert: str, unverified: bool
) -> None:
    assert is_unverified(PostgresSettings(host, 5432, "shop", "ada", "x", sslmode, sslrootcert, "", "", "")) is unverified


@pytest.fixture(scope="module")
def strict_server() -> Iterator[PostgresServer]:
    with PostgresServer(password="right") as server:
        yield server


@pytest.mark.parametrize(
    ("change", "kind", "exit_code", "remedy"),
    [
        ({"password": "wrong-secret"}, TransientError, 75, "check {0}user and {0}password"),
        ({"password": ""}, UsageError, 2, "give a password"),
        ({"dbname": "nowhere"}, UsageError, 2, "check {0}dbname"),
        ({"user": "nobody"}, TransientError, 75, "check {0}user"),
        ({"sslmode": "require"}, UsageError, 2, "check {0}sslmode"),
        ({"port": 1}, TransientError, 75, "check {0}host and {0}port"),
        ({"host": "host.invalid"}, TransientError, 75, "check {0}host and {0}port"),
    ],
    ids=str,
)
def test_the_same_refusal_is_the_same_error_at_source_and_target(
    strict_server: PostgresServer, change: dict[str, Any], kind: type[PgsluiceError], exit_code: int, remedy: str
) -> None:
    settings = replace(strict_server.settings_for("postgres"), **change)
    for refusal, options in ((source_refusal(settings), ""), (target_refusal(settings), "target-")):
        assert (type(refusal), refusal.exit_code) == (kind, exit_code)
        assert remedy.format(options) in refusal.remedy
        assert "wrong-secret" not in str(refusal)


@pytest.mark.parametrize("is_target", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "the database system is not yet accepting connections DETAIL:  Consistent state has not been reached.",
        "the database system is not accepting connections DETAIL:  Hot standby mode is disabled.",
        "the database system is starting up",
        "sorry, too many clients already",
        'too many connections for role "ada"',
    ],
)
def test_a_server_that_is_not_ready_is_waited_for_on_either_side(text: str, is_target: bool) -> None:
    settings = PostgresSettings("127.0.0.1", 5432, "shop", "ada", "", "", "", "", "", "")
    error = psycopg.OperationalError(f'connection to server at "127.0.0.1", port 5432 failed: FATAL:  {text}')
    assert type(connection_error(settings, {}, error, is_target=is_target)) is TransientError


def test_a_server_tells_the_code_of_its_refusal_and_nobody_else_does() -> None:
    with PostgresServer(password="right") as server:
        parameters: dict[str, Any] = {
            "host": server.host,
            "port": server.port,
            "user": server.user,
            "password": "wrong",
            "dbname": "postgres",
        }
        with pytest.raises(psycopg.OperationalError) as raised:
            psycopg.connect(**parameters)
        assert comes_from_server(raised.value)
        assert refused_sqlstate(parameters, 10) == "28P01"
        assert refused_sqlstate(parameters | {"password": "right", "dbname": "nowhere"}, 10) == "3D000"
        assert refused_sqlstate(parameters | {"password": "right"}, 10) == ""
    with pytest.raises(psycopg.OperationalError) as raised:
        psycopg.connect(**parameters)
    assert not comes_from_server(raised.value)
    assert refused_sqlstate(parameters, 10) == ""
    assert refused_sqlstate(parameters | {"host": "host.invalid"}, 10) == ""


def test_a_login_that_is_refused_for_long_ends_the_process_for_a_new_start(
    strict_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment's secrets are read at a start alone."""
    settings = replace(strict_server.settings_for("postgres"), password="wrong-secret")
    note_login(settings)
    assert type(source_refusal(settings)) is TransientError
    monkeypatch.setattr(refused_connection, "LOGIN_PATIENCE_S", 0.3)
    ended = wait_until(
        lambda: error if isinstance(error := target_refusal(settings), LoginRefusedError) else None, what="the end"
    )
    assert ended.exit_code == 75
    assert "check target-user and target-password" in ended.remedy
    note_login(settings)
    assert type(source_refusal(settings)) is TransientError


def test_a_login_that_was_refused_long_ago_is_tried_again_for_as_long(strict_server: PostgresServer) -> None:
    settings, now = replace(strict_server.settings_for("postgres"), password="wrong-secret"), time.monotonic()
    refused_connection._refusals[settings] = now - 3 * LOGIN_PATIENCE_S, now - 2 * LOGIN_PATIENCE_S
    assert type(source_refusal(settings)) is TransientError
    note_login(settings)


@pytest.mark.parametrize("form", ["{password}", "postgres://postgres:{password}@{host}:{port}/postgres"], ids=["password", "url"])
def test_a_password_that_was_rotated_is_read_again_from_its_file(tmp_path: Path, form: str) -> None:
    with PostgresServer(password="right") as server:
        file = tmp_path / "secret"

        def write(password: str) -> None:
            file.write_text(form.format(password=password, host=server.host, port=server.port) + "\n")

        write("right")
        option = "password-file" if form == "{password}" else "source-url-file"
        given = {option: str(file)} | ({} if "url" in option else address(server))
        settings = make(OneDatabase, load_given(given, OneDatabase)).source
        asyncio.run(source_session(settings))
        server.password = "another"
        with psycopg.connect(server.dsn().replace("another", "right"), autocommit=True) as connection:
            connection.execute("ALTER ROLE postgres PASSWORD 'another'")
        assert type(source_refusal(settings)) is TransientError
        write("another")
        asyncio.run(source_session(pickle.loads(pickle.dumps(settings))))
        file.unlink()
        assert type(source_refusal(settings)) is TransientError


@declared
class OneDatabase:
    source: PostgresSettings = part(PostgresSettings, database="source")


def address(server: PostgresServer) -> dict[str, str]:
    return {"host": server.host, "port": str(server.port), "dbname": "postgres", "user": "postgres"}
