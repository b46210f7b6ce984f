"""A partition that is being detached: the server begins it in a transaction of its own, and waits for readers before the rest."""

from __future__ import annotations

import psycopg
import pytest

from tests.servers import Database


def begin_detaching(database: Database, root: str, partition: str) -> None:
    """And does not end it."""
    with database.connect(autocommit=False) as reader, database.connect() as owner:
        reader.execute(f"SELECT FROM {root}".encode())
        owner.execute("SET statement_timeout = '1s'")
        with pytest.raises(psycopg.errors.QueryCanceled):  # what it has begun stays
            owner.execute(f"ALTER TABLE {root} DETACH PARTITION {partition} CONCURRENTLY".encode())
