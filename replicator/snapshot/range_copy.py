"""Copying one page range from the source's pages into the snapshot stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from replicator.connection import TOO_LARGE, Connection, is_too_large, server_said
from replicator.snapshot.copy_reader import CopyFailedError, CopyReader
from replicator.snapshot.orders import CopyOrder, RangeFailedError, RangeOrder, RangeOutcome, Verdict
from replicator.snapshot.plan import PageRange
from replicator.snapshot.range_messages import RangeMessages
from replicator.snapshot.range_publisher import RangePublisher
from shared.errors import TerminalError, TransientError


async def publish_rows(
    connection: Connection, publisher: RangePublisher, order: CopyOrder, range_order: RangeOrder
) -> RangeOutcome:
    """The outcome of a range that is stored when this returns. ``connection`` is in a transaction under the snapshot, and of no
    use after an error. Raises RangeFailedError for what the source says, or as the publisher does."""
    messages, pages = RangeMessages(order, range_order), range_order.pages
    try:
        async with locked(connection, pages):
            async for piece in CopyReader(connection).pieces(pages.query, order.cut_bytes):
                for headers, data in messages.next(piece):
                    await publisher.publish(headers, data)
    except CopyFailedError as failure:
        raise copy_failure(pages, failure.sqlstate, failure.text) from None
    except psycopg.Error as error:
        raise copy_failure(pages, error.sqlstate or "", error.diag.message_primary or str(error)) from None
    last_sequence = await publisher.flush()
    return RangeOutcome(pages, Verdict.DONE, messages.rows, messages.bytes, last_sequence)


@asynccontextmanager
async def locked(connection: Connection, pages: PageRange) -> AsyncIterator[None]:
    """Keeps the relation as it is while the range is read and no longer: whoever wants to alter the table waits for one range,
    not for the whole copy. Raises RangeFailedError when it is no longer what the snapshot shows."""
    await connection.execute("SAVEPOINT range")
    await connection.execute(pages.lock.encode())
    cursor = await connection.execute("SELECT coalesce(pg_relation_filenode(%s::oid), 0)::bigint", [pages.relation_oid])
    if await cursor.fetchone() != (pages.filenode,):
        error = TransientError(f"{pages.name} was truncated or rewritten while it was copied", "it is copied anew")
        raise RangeFailedError(Verdict.REWRITTEN, error)
    yield
    await connection.execute("ROLLBACK TO SAVEPOINT range")


_CONNECTION_LOST = ("08", "57P")
_ALTERED = ("42P01", "42703", "3F000")  # no such table, column, schema


def copy_failure(pages: PageRange, sqlstate: str, text: str) -> RangeFailedError:
    """What the source's error means for the range."""
    fact = f"copying {pages.name} failed{server_said(sqlstate, text)}"
    if not sqlstate or sqlstate.startswith(_CONNECTION_LOST):
        return RangeFailedError(Verdict.UNAVAILABLE, TransientError(fact, "it is tried again"))
    if sqlstate in _ALTERED:
        return RangeFailedError(Verdict.REWRITTEN, TransientError(fact, "the table was altered; it is copied anew"))
    if sqlstate == "42501" and "row-level" in text:
        return RangeFailedError(
            Verdict.REFUSED, TerminalError(fact, "give the role BYPASSRLS, or make it the owner of a table without FORCE")
        )
    if sqlstate == "42501":
        return RangeFailedError(Verdict.REFUSED, TerminalError(fact, f"GRANT SELECT ON {pages.name} to the role"))
    if sqlstate.startswith("22"):
        return RangeFailedError(Verdict.REFUSED, TerminalError(fact, "the publication's row filter fails on a row; correct it"))
    if is_too_large(sqlstate, text):
        return RangeFailedError(Verdict.REFUSED, TerminalError(fact, f"{TOO_LARGE}; then start with --retry-errored"))
    return RangeFailedError(Verdict.FAILED, TransientError(fact, "see the source's log"))
