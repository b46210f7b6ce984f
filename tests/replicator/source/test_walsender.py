"""What is said of a walsender that fails."""

from __future__ import annotations

import asyncio

from pgsluice.replicator.source.copy_both import end_error
from pgsluice.replicator.source.copy_data import COPY_DATA
from pgsluice.replicator.source.walsender import WalSender
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.wire.position import LSN
from tests.replicator.source.received import messages
from tests.servers import Database

MARKER = "M4RKER"


async def failure(source: Database) -> PgsluiceError:
    walsender = await WalSender.connect(source.settings)
    try:
        await walsender.start("failing", "failing", LSN(0))
        async for message in messages(walsender):
            if message[0] != COPY_DATA:
                return end_error(message)
        raise AssertionError("the stream goes on for ever")
    finally:
        await walsender.close()


def test_an_error_of_the_walsender_quotes_no_value(source_database: Database) -> None:
    """A row filter that fails names the value in its message."""
    source = source_database
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY FULL")
    source.execute("CREATE PUBLICATION failing FOR TABLE t WHERE (parse_ident(v) IS NOT NULL)")
    source.execute("SELECT pg_create_logical_replication_slot('failing', 'pgoutput')")
    source.execute(f"INSERT INTO t VALUES (1, '{MARKER} ?')")
    error = asyncio.run(failure(source))
    assert "SQLSTATE 22023" in str(error)
    assert MARKER not in str(error)
