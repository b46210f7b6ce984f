"""A source and a target with faults of every kind that ``pgsluice check`` cures, and a configuration that names both."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import orjson
import yaml

from pgsluice.console.program import run
from tests.servers import Database, NatsServer, PostgresServer

GROUP = "planted"

_SERVER = (
    "ALTER SYSTEM SET wal_level = 'replica'",
    "ALTER SYSTEM SET max_replication_slots = 1",
    "ALTER SYSTEM SET max_wal_senders = 1",
    "ALTER SYSTEM SET max_slot_wal_keep_size = 0",
    "ALTER SYSTEM SET idle_replication_slot_timeout = '60s'",
    "ALTER SYSTEM SET max_prepared_transactions = 5",
    "SELECT pg_create_physical_replication_slot('taken')",
)

_SOURCE = """
CREATE ROLE copier LOGIN VALID UNTIL '2999-01-01' CONNECTION LIMIT 5;
CREATE ROLE owner NOLOGIN;
CREATE SCHEMA sales;
CREATE TYPE sales.mood AS ENUM ('sad', 'it''s fine');
CREATE TABLE ordinary (id bigint PRIMARY KEY, note text NOT NULL);
CREATE TABLE narrow (id bigint PRIMARY KEY, amount bigint);
CREATE TABLE unlike (id int PRIMARY KEY, word text);
CREATE TABLE wide (id int PRIMARY KEY, added text);
CREATE TABLE keyless_there (id int PRIMARY KEY);
CREATE TABLE firing (id int PRIMARY KEY);
CREATE TABLE indexed (id int NOT NULL, v text);
CREATE UNIQUE INDEX indexed_id ON indexed (id);
CREATE TABLE bare (id int, v text);
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
CREATE TABLE silent (id int PRIMARY KEY);
ALTER TABLE silent REPLICA IDENTITY NOTHING;
CREATE UNLOGGED TABLE named_unlogged (id int PRIMARY KEY);
CREATE UNLOGGED TABLE sales.also_unlogged (id int PRIMARY KEY);
CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
ALTER TABLE parted_1 REPLICA IDENTITY FULL;
CREATE TABLE sales.secret (id int PRIMARY KEY, feeling sales.mood);
ALTER TABLE sales.secret ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE TABLE generated (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE PUBLICATION pgsluice_gone FOR TABLE ordinary;
COMMENT ON PUBLICATION pgsluice_gone IS 'pgsluice group gone';
INSERT INTO ordinary VALUES (1, 'one');
INSERT INTO sales.secret VALUES (1, 'sad');
INSERT INTO bare VALUES (1, 'b');
ALTER TABLE ordinary OWNER TO owner;
ALTER TABLE sales.secret OWNER TO owner;
"""

_TARGET = """
CREATE ROLE loader LOGIN;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
CREATE SCHEMA pgsluice;
CREATE TABLE ordinary (id bigint PRIMARY KEY, note text NOT NULL, required int NOT NULL);
CREATE TABLE narrow (id bigint PRIMARY KEY, amount int);
CREATE TABLE unlike (id int PRIMARY KEY, word int);
CREATE TABLE wide (id int PRIMARY KEY);
CREATE TABLE keyless_there (id int);
CREATE TABLE firing (id int PRIMARY KEY);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER always AFTER INSERT ON firing FOR EACH ROW EXECUTE FUNCTION nothing();
ALTER TABLE firing ENABLE ALWAYS TRIGGER always;
"""

TABLES = (
    *("ordinary", "narrow", "unlike", "wide", "keyless_there", "firing", "indexed", "bare", "deferred", "silent"),
    *("named_unlogged", "parted", "generated", "sales.*"),
)

FAULTS = (
    ("error", "source-wal-level", "wal_level of the source is 'replica'"),
    ("error", "source-replication-role", "role 'copier' may not replicate"),
    ("error", "source-free-slots", "unused: taken"),
    ("error", "source-free-senders", "max_wal_senders"),
    ("error", "source-kept-wal", "max_slot_wal_keep_size is 0"),
    ("warning", "source-idle-timeout", "idle_replication_slot_timeout is 60 s"),
    ("warning", "source-role-expires", "2999"),
    ("error", "source-connections", "may have 5 connections"),
    ("error", "source-privileges", "lacks"),
    ("error", "source-select", "public.narrow"),
    ("error", "source-row-security", "sales.secret"),
    ("error", "source-table", "public.named_unlogged is unlogged"),
    ("warning", "source-unlogged", "sales.also_unlogged"),
    ("error", "source-replica-identity", "public.indexed"),
    ("error", "source-replica-identity", "public.bare"),
    ("error", "source-replica-identity", "public.deferred"),
    ("error", "source-replica-identity", "public.silent"),
    ("warning", "source-partition-identity", "partitions of public.parted"),
    ("warning", "source-open-transaction", "prepared transaction 'held'"),
    ("warning", "source-left", "publication of group 'gone'"),
    ("info", "source-generated-columns", "public.generated (twice)"),
    ("error", "target-privileges", "may not use schema pgsluice"),
    ("error", "target-privileges", "may not create tables in schema pgsluice"),
    ("error", "target-disable-foreign-keys", "session_replication_role"),
    ("error", "target-columns", "column 'required'"),
    ("warning", "target-column-type", "column 'amount'"),
    ("error", "target-column-type", "column 'word'"),
    ("error", "target-columns", "no column 'added'"),
    ("error", "target-key", "public.keyless_there"),
    ("error", "target-table-privileges", "public.firing"),
    ("error", "target-schema-privileges", "schema public"),
    ("error", "target-schema-privileges", "schema sales"),
    ("warning", "target-triggers", "public.firing"),
    ("warning", "target-type-missing", "sales.mood"),
)
"""Severity, check, and what the sentence says."""

NOT_BY_SQL = {"source-keyless-full", "source-open-transaction", "source-left", "source-unlogged", "target-triggers"}
"""Checks whose cure takes something away, or is a person's choice."""


class Planted:
    """The servers, and ``check`` on them."""

    def __init__(self, nats: NatsServer, directory: Path) -> None:
        self._nats = nats
        self._config = directory / "planted.yaml"
        self._running = ExitStack()

    def __enter__(self) -> Self:
        servers = [PostgresServer(), PostgresServer()]
        for name in ("wal_level", "max_wal_senders", "max_replication_slots"):
            del servers[0].settings[name]  # from the command line it would hide what ALTER SYSTEM sets
        self.source_server, self.target_server = (self._running.enter_context(server) for server in servers)
        self.source = self.source_server.create_database("shop")
        self.target = self.target_server.create_database("warehouse")
        self.source.execute(_SOURCE)
        for statement in _SERVER:
            self.source.execute(statement)
        self.source_server.restart()
        with self.source.connect() as connection:
            connection.execute("BEGIN; CREATE TABLE held_back (); PREPARE TRANSACTION 'held'")
        self.target.execute(_TARGET)
        self._config.write_text(yaml.safe_dump(self.keys))
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    @property
    def keys(self) -> dict[str, Any]:
        """The configuration of all processes of the group."""
        return {
            **{"group": GROUP, "nats-url": self._nats.url, "copy-and-stream": True, "tables": list(TABLES)},
            **{"host": self.source_server.host, "port": self.source_server.port, "dbname": "shop", "user": "copier"},
            **{"target-host": self.target_server.host, "target-port": self.target_server.port},
            **{"target-dbname": "warehouse", "target-user": "loader", "target-disable-foreign-keys": True},
            "stream-max-bytes": "256MiB",
            "max-copy-connections": 4,
            "spark": {"master": "local[2]"},
        }

    def check(self, *flags: str) -> int:
        """The exit code; the output is the caller's to capture."""
        return run(["check", "--config", str(self._config), *flags])


def run_script(database: Database, script: str) -> None:
    """As ``psql`` would, by the superuser: a statement a line, each by itself."""
    for line in script.splitlines():
        if line and not line.startswith("--"):
            database.execute(line)


def told(output: str) -> list[tuple[str, str, str]]:
    """What ``--json`` wrote, as FAULTS are listed."""
    return [(finding["severity"], finding["check"], finding["fact"]) for finding in orjson.loads(output)["findings"]]
