"""The code of a copy's Spark task: page ranges, one after the other, from the source's pages into the snapshot stream.

A Python process that runs tasks keeps one connection to the source, in a transaction under the snapshot, and one to
NATS, for as long as it lives: a copy has no more connections than it has tasks at a time.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import LiteralString

import psycopg
import uvloop
from nats.aio.client import Client
from psycopg.pq import TransactionStatus

from pgsluice.replicator.snapshot.copy_task_messages import (
    CopyParameters,
    RangeFailedError,
    RangeOutcome,
    RangeRequest,
    RangeStatus,
    RowSteps,
)
from pgsluice.replicator.snapshot.dead_rows import DeadRows
from pgsluice.replicator.snapshot.export import begin, import_snapshot
from pgsluice.replicator.snapshot.plan import PageRange
from pgsluice.replicator.snapshot.range_publisher import RangePublisher
from pgsluice.replicator.snapshot.range_reader import CopyFailedError, CopyReader, RangeMessages, RowBlock
from pgsluice.replicator.snapshot.stream_share import size_for
from pgsluice.replicator.source.connection import (
    RECOVERY_CONFLICT,
    TOO_LARGE,
    Connection,
    connect,
    is_too_large,
    server_said,
    sql_error,
)
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.broker import connection as nats_connection
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import Cause, PgsluiceError, SnapshotGoneError, TerminalError, TransientError
from pgsluice.shared.postgres.passing_cause import passing_cause
from pgsluice.shared.process.defect import place_of
from pgsluice.shared.wire.names import GroupNames

CANCEL_DEADLINE_S = 2.0

log = telemetry.logger(__name__)

_CONNECTION_LOST = ("08", "57P")
_ALTERED = ("42P01", "42703", "3F000")  # no such table, column, schema
_OF_A_ROW = ("22", "23", "XX001", "XX002")  # data, constraints of a domain, a corrupted page or index
_STATEMENT_TIMEOUT = "57014"
_SERIALIZATION_FAILURE = "40001"

# One plan for every attempt, the pages in their order: with a row filter another plan would give another order. And all rows or
# an error, where the role would see only some of them.
_PINNED: LiteralString = """
    SELECT set_config(name, value, false)
      FROM (VALUES ('enable_seqscan', 'off'), ('enable_indexscan', 'off'), ('enable_indexonlyscan', 'off'),
                   ('enable_bitmapscan', 'off'), ('enable_tidscan', 'on'), ('max_parallel_workers_per_gather', '0'),
                   ('synchronize_seqscans', 'off'), ('jit', 'off'), ('row_security', 'off')) AS pinned (name, value)
"""

# Rows are those of the snapshot, but names mean what they mean now: they may be another's. The catalog's tables show the names of
# the snapshot, its functions those of now.
_RELATION: LiteralString = """
    SELECT coalesce(pg_relation_filenode(%(oid)s::oid), 0)::bigint,
           NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                        WHERE c.oid = %(oid)s
                          AND (pg_identify_object('pg_class'::regclass, c.oid, coalesce(a.attnum, 0))).identity
                              IS DISTINCT FROM concat_ws('.', quote_ident(n.nspname), quote_ident(c.relname),
                                                         quote_ident(a.attname)))
"""

_SESSION: LiteralString = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS given (name, value)"


def copy_ranges(parameters: CopyParameters, ranges: Iterable[RangeRequest]) -> Iterator[RangeOutcome]:
    """Copies one range after the other; each has its outcome. Blocks."""
    process = _copy_process()
    for request in ranges:
        yield process.copy(parameters, request)


@functools.cache
def _copy_process() -> CopyProcess:
    """Returns this process's connections."""
    return CopyProcess()


def _runner() -> asyncio.Runner:
    """Returns this process's runner, which creates its loop when it first runs."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


class CopyProcess:
    """The connections of this process, made when they are needed, and again after they broke."""

    def __init__(self) -> None:
        self._runner = _runner()
        self._client: Client | None = None
        self._nats: NatsSettings | None = None
        self._connection: Connection | None = None
        self._snapshot_name = ""
        self._copying: asyncio.Task[RangeOutcome] | None = None
        self._is_interrupted = False

    def copy(self, parameters: CopyParameters, request: RangeRequest) -> RangeOutcome:
        """Raises CancelledError after ``interrupt``."""
        return self._runner.run(self._copy_until_interrupted(parameters, request))

    def interrupt(self) -> None:
        """Any thread may call: what is being copied ends between two messages, and nothing more is copied."""
        self._is_interrupted = True
        copying = self._copying
        if copying is not None:
            copying.get_loop().call_soon_threadsafe(copying.cancel)

    async def _copy_until_interrupted(self, parameters: CopyParameters, request: RangeRequest) -> RangeOutcome:
        self._copying = asyncio.ensure_future(self._copy(parameters, request))
        try:
            if self._is_interrupted:
                raise asyncio.CancelledError
            return await self._copying
        finally:
            await cancel([self._copying])
            self._copying = None

    def close(self) -> None:
        """Closes the connections and the event loop; they are made again when the next range is copied."""
        self._runner.run(self._close())
        self._runner.close()
        self._runner = _runner()

    async def _copy(self, parameters: CopyParameters, request: RangeRequest) -> RangeOutcome:
        try:
            return await self._store(parameters, request)
        except RangeFailedError as failure:
            status, error = failure.status, failure.error
        except SnapshotGoneError as gone:
            status, error = RangeStatus.SNAPSHOT_GONE, gone
        except PgsluiceError as raised:
            status = RangeStatus.UNAVAILABLE if isinstance(raised, TransientError) else RangeStatus.REFUSED
            error = raised
        except Exception as defect:  # noqa: BLE001  Spark prints what a task raises, and this one may quote a row
            status = RangeStatus.FAILED
            # no cause: a defect may be about anything
            error = TransientError(f"copying {request.pages.name} failed ({place_of(defect)})", "it is tried again")
        await self._disconnect_source()
        return RangeOutcome(request.pages, status, error=error)

    async def _store(self, parameters: CopyParameters, request: RangeRequest) -> RangeOutcome:
        """Returns the outcome of a range that is stored; it is read unless the stream holds all of it."""
        names, pages = GroupNames(parameters.group), request.pages
        client = await self._connected_client(parameters)
        subject = names.snapshot_range_subject(parameters.snapshot_id, pages.table_oid, pages.number)
        id_prefix = f"{parameters.system_id}/{parameters.snapshot_id}/{pages.table_oid}/{pages.number}/"
        publisher = RangePublisher(client, SnapshotStream(client, names), subject, id_prefix, parameters.pauses)
        try:
            stored = await publisher.resume()
            if stored.headers is not None and stored.headers.is_range_end:
                rows, size = stored.headers.range_rows, stored.headers.range_bytes
                return RangeOutcome(pages, RangeStatus.DONE, rows, size, stored.sequence)
            dead_rows = DeadRows(client, parameters, request)
            return await publish_rows(await self._connected_source(parameters), publisher, parameters, request, dead_rows)
        finally:
            await publisher.close()

    async def _connected_client(self, parameters: CopyParameters) -> Client:
        if self._client is not None and self._nats != parameters.nats:  # Spark outlived the program that it worked for
            await self._disconnect_nats()
        if self._client is None or self._client.is_closed:
            self._client = await nats_connection.connect(parameters.nats, f"pgsluice copy {parameters.group}")
            self._nats = parameters.nats
        return self._client

    async def _connected_source(self, parameters: CopyParameters) -> Connection:
        if self._snapshot_name != parameters.snapshot_name:
            await self._disconnect_source()
        if self._connection is None:
            self._connection = await connect(parameters.source, raw=True)
            self._snapshot_name = parameters.snapshot_name
            try:
                await begin(self._connection)
                await import_snapshot(self._connection, parameters.snapshot_name)
                if parameters.session:
                    await self._connection.execute(_SESSION, [list(part) for part in zip(*parameters.session, strict=True)])
                else:
                    await self._connection.execute(_PINNED)
            except psycopg.Error as error:
                raise sql_error(error, "preparing a connection that copies") from None
        return self._connection

    async def _disconnect_source(self) -> None:
        if self._connection is not None:
            if self._connection.info.transaction_status == TransactionStatus.ACTIVE:
                await _end_statement(self._connection)
            await self._connection.close()
            self._connection = None

    async def _close(self) -> None:
        await self._disconnect_source()
        await self._disconnect_nats()

    async def _disconnect_nats(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await nats_connection.disconnect(client)


async def _end_statement(connection: Connection) -> None:
    """Ends the statement as well as possible: a server notices a missing reader only when it has something to send."""
    try:
        await connection.cancel_safe(timeout=CANCEL_DEADLINE_S)
    except psycopg.Error as error:
        log.debug("a statement at the source could not be cancelled", reason=type(error).__name__)


async def publish_rows(
    connection: Connection,
    publisher: RangePublisher,
    parameters: CopyParameters,
    request: RangeRequest,
    dead_rows: DeadRows,
) -> RangeOutcome:
    """Publishes a range; it is stored when this returns its outcome. ``connection`` is in a transaction under the
    snapshot, and of no use after an error. Raises RangeFailedError for errors of the source, or as the publisher does."""
    messages, pages, rows = RangeMessages(parameters, request), request.pages, 0
    try:
        async with locked(connection, pages):
            async for block in CopyReader(connection).blocks(pages.query, parameters.share.cut_bytes):
                rows += block.rows
                if block.is_last:
                    await check_count(connection, request, rows)
                body = block if parameters.steps is None else await stepped(parameters.steps, dead_rows, block)
                await check_room(publisher, parameters, request, messages.body_bytes(body))
                for headers, data in messages.next(body, read=block):
                    await publisher.publish(headers, data)
    except CopyFailedError as failure:
        raise copy_failure(pages, failure.sqlstate, failure.text) from None
    except psycopg.Error as error:
        raise copy_failure(pages, error.sqlstate or "", error.diag.message_primary or str(error)) from None
    last_sequence = await publisher.flush()
    return RangeOutcome(pages, RangeStatus.DONE, messages.rows, messages.bytes, last_sequence, messages.is_whole)


async def check_count(connection: Connection, request: RangeRequest, rows: int) -> None:
    """Raises RangeFailedError when ``rows``, the number read, is not the number counted over all rows in order: neither
    when the run was planned nor in this session, whose now() is another."""
    if request.rows in (None, rows):
        return
    found = await (await connection.execute(request.count.encode())).fetchone()
    counted = 0 if found is None else int(found[1])
    if counted != rows:
        fact = f"the query of {request.pages.name} gave {rows} rows of range {request.pages.number}, which has {counted}"
        remedy = (
            "have it give the same rows whenever it is read (no random(), no TABLESAMPLE without REPEATABLE) and REINDEX the"
            " indexes on its key; then run the pipeline with --full"
        )
        raise RangeFailedError(RangeStatus.REFUSED, TerminalError(fact, remedy))


async def stepped(steps: RowSteps, dead_rows: DeadRows, block: RowBlock) -> RowBlock:
    """Returns the block as it is published. Rows that steps fail on are dead letters when this returns. Raises
    RangeFailedError when there would be too many."""
    if not block.rows:
        return block
    given = await asyncio.to_thread(steps.apply, block.rows, block.data)
    await dead_rows.set_aside(block, given.failed)
    return RowBlock(given.rows, given.data, block.is_last)


async def check_room(publisher: RangePublisher, parameters: CopyParameters, request: RangeRequest, body_bytes: int) -> None:
    """Raises RangeFailedError when the range may not publish a body of that size, now or ever. Then no body is stored in part."""
    share, name = parameters.share, request.pages.name
    if body_bytes <= share.most_bytes(request.room):
        return
    await publisher.flush()
    if body_bytes <= share.lone_body_bytes:
        error = TransientError(
            f"{name} has a row that is too large to be copied together with others",
            "it is copied when they are done",
            Cause.STREAM_FULL,
        )
        raise RangeFailedError(RangeStatus.NEEDS_ROOM, error)
    fact = f"{name} has a row that takes {body_bytes} bytes of the stream, which has room for {share.lone_body_bytes}"
    raise RangeFailedError(RangeStatus.REFUSED, TerminalError(fact, f"set stream-max-bytes to {size_for(body_bytes)} or more"))


@asynccontextmanager
async def locked(connection: Connection, pages: PageRange) -> AsyncIterator[None]:
    """Locks the relation while the range is read and no longer: a session that alters the table waits for a single
    range, not for the whole copy. Raises RangeFailedError when it is no longer as the snapshot shows."""
    await connection.execute("SAVEPOINT range")
    await connection.execute(pages.lock.encode())
    cursor = await connection.execute(_RELATION, {"oid": pages.relation_oid})
    filenode, has_its_names = await cursor.fetchone() or (0, False)
    if filenode != pages.filenode or not has_its_names:
        change = "truncated or rewritten" if has_its_names else "altered"
        error = TransientError(f"{pages.name} was {change} while it was copied", "it is copied again", Cause.SOURCE)
        raise RangeFailedError(RangeStatus.REWRITTEN, error)
    yield
    await connection.execute("ROLLBACK TO SAVEPOINT range")


def copy_failure(pages: PageRange, sqlstate: str, text: str) -> RangeFailedError:
    """Returns the range's error for an error of the source."""
    doing = f"the query of {pages.name}" if pages.is_of_query else f"copying {pages.name}"
    fact, cause = f"{doing} failed{server_said(sqlstate, text)}", passing_cause(sqlstate, Cause.SOURCE)
    if not sqlstate or sqlstate.startswith(_CONNECTION_LOST):
        return RangeFailedError(RangeStatus.UNAVAILABLE, TransientError(fact, "it is tried again", cause))
    if sqlstate == _SERIALIZATION_FAILURE:
        return RangeFailedError(RangeStatus.SNAPSHOT_GONE, SnapshotGoneError(fact, RECOVERY_CONFLICT))
    if pages.is_of_query:
        return _query_failure(fact, sqlstate, text, cause)
    if sqlstate in _ALTERED:
        return RangeFailedError(RangeStatus.REWRITTEN, TransientError(fact, "the table was altered; it is copied again", cause))
    if sqlstate == "42501" and "row-level" in text:
        return RangeFailedError(
            RangeStatus.REFUSED, TerminalError(fact, "give the role BYPASSRLS, or make it the owner of a table without FORCE")
        )
    if sqlstate == "42501":
        return RangeFailedError(RangeStatus.REFUSED, TerminalError(fact, f"GRANT SELECT ON {pages.name} to the role"))
    if sqlstate.startswith("22"):
        error = TerminalError(fact, "the publication's row filter fails on a row; correct it")
        return RangeFailedError(RangeStatus.REFUSED, error)
    if is_too_large(sqlstate, text):
        return RangeFailedError(RangeStatus.REFUSED, TerminalError(fact, TOO_LARGE))
    return RangeFailedError(RangeStatus.FAILED, TransientError(fact, "see the source's log", cause))


def _query_failure(fact: str, sqlstate: str, text: str, cause: Cause) -> RangeFailedError:
    """Returns the error for a pipeline's query; not for a lost connection."""
    if sqlstate == "42501":
        return RangeFailedError(RangeStatus.REFUSED, TerminalError(fact, "grant the role SELECT on the tables of the query"))
    if sqlstate.startswith(_OF_A_ROW) or is_too_large(sqlstate, text):
        return RangeFailedError(RangeStatus.UNREADABLE, TerminalError(fact, "correct the query"))
    if sqlstate.startswith("42"):
        return RangeFailedError(RangeStatus.REFUSED, TerminalError(fact, "correct the query"))
    if sqlstate == _STATEMENT_TIMEOUT:
        error = TransientError(fact, "raise statement-timeout of the pipeline", cause)
        return RangeFailedError(RangeStatus.TIMED_OUT, error)
    return RangeFailedError(RangeStatus.FAILED, TransientError(fact, "see the source's log", cause))
