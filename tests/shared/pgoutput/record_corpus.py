"""Records the corpus anew: ``python -m tests.shared.pgoutput.record_corpus [dsn]``.

Without a DSN it starts the embedded server; a DSN (of a superuser, ``wal_level = logical``) adds another version.
"""

from __future__ import annotations

import sys
import uuid

import psycopg
from psycopg.conninfo import make_conninfo

from tests.servers import PostgresServer
from tests.shared.pgoutput.corpus import Recording, record, save
from tests.shared.pgoutput.scenarios import SCENARIOS, Scenario


def record_all(dsn: str) -> list[Recording]:
    with psycopg.connect(dsn, autocommit=True) as administrator:
        return [_record_apart(administrator, dsn, scenario) for scenario in SCENARIOS]


def _record_apart(administrator: psycopg.Connection, dsn: str, scenario: Scenario) -> Recording:
    database = f"corpus_{uuid.uuid4().hex}"
    administrator.execute(f"CREATE DATABASE {database} ENCODING 'UTF8' TEMPLATE template0".encode())
    try:
        with psycopg.connect(make_conninfo(dsn, dbname=database), autocommit=True) as connection:
            return record(connection, scenario)
    finally:
        administrator.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())


def main() -> None:
    if len(sys.argv) > 1:
        print(save(record_all(sys.argv[1])))
    else:
        with PostgresServer() as server:
            print(save(record_all(server.dsn())))


if __name__ == "__main__":
    main()
