"""Recorded pgoutput messages: how they are recorded, kept and found again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from tests.shared.pgoutput.scenarios import Scenario

DIRECTORY = Path(__file__).parent / "corpus"
SLOT = PUBLICATION = "recorded"

SESSION = """SET client_encoding = 'UTF8'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC';
             SET extra_float_digits = 3; SET bytea_output = 'hex'"""


@dataclass(frozen=True, slots=True)
class Recording:
    """The messages of one scenario in the server's order, and the rows its tables had at the end, as text, by qualified name."""

    server_version: str
    scenario: str
    messages: tuple[bytes, ...]
    rows: dict[str, list[list[str | None]]]

    def __str__(self) -> str:
        return f"{self.scenario} ({self.server_version})"


def record(connection: psycopg.Connection[Any], scenario: Scenario) -> Recording:
    """Runs ``scenario`` in the connection's database, which must be empty and is of no use afterwards."""
    connection.execute(SESSION)
    connection.execute(scenario.setup.encode())
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} {scenario.publication}".encode())
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    try:
        for statement in scenario.statements:
            connection.execute(statement.encode())
        taken = connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
            [SLOT, PUBLICATION],
        ).fetchall()
    finally:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
    return Recording(
        server_version=f"PostgreSQL {connection.info.server_version // 10000}",
        scenario=scenario.name,
        messages=tuple(data for (data,) in taken),
        rows=dict(_rows(connection, table) for table in scenario.tables),
    )


def _rows(connection: psycopg.Connection[Any], table: str) -> tuple[str, list[list[str | None]]]:
    """The table's qualified name and rows, in the text that the types' output functions make, as pgoutput has it."""
    (name,) = connection.execute(
        "SELECT nspname || '.' || relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s::regclass",
        [table],
    ).fetchone() or ("",)
    result = connection.execute(f"SELECT * FROM {table}".encode()).pgresult
    assert result is not None
    return name, [[_text(result.get_value(row, column)) for column in range(result.nfields)] for row in range(result.ntuples)]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def save(recordings: list[Recording]) -> Path:
    """Writes all recordings of one server's version to its file."""
    (version,) = {recording.server_version for recording in recordings}
    DIRECTORY.mkdir(exist_ok=True)
    path = DIRECTORY / f"{version.lower().replace(' ', '-')}.json"
    document = {
        recording.scenario: {"rows": recording.rows, "messages": [message.hex() for message in recording.messages]}
        for recording in recordings
    }
    path.write_text(json.dumps({"server_version": version, "scenarios": document}, indent=1, ensure_ascii=False) + "\n")
    return path


@cache
def recordings() -> tuple[Recording, ...]:
    """Every recording that is kept, of every server version."""
    return tuple(recording for path in sorted(DIRECTORY.glob("*.json")) for recording in _load(path))


def _load(path: Path) -> Iterator[Recording]:
    document = json.loads(path.read_text())
    for name, kept in document["scenarios"].items():
        messages = tuple(bytes.fromhex(message) for message in kept["messages"])
        yield Recording(document["server_version"], name, messages, kept["rows"])
