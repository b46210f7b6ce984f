"""One page range as messages: COPY TO STDOUT received through libpq, cut into blocks of whole rows, and numbered.

libpq gives one row at a time (manual: "Functions Associated with the COPY Command"), so the loop does no more for a row than
one call, one append and one comparison. Where a block ends depends on the rows alone: the same rows give the same messages.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import psycopg
from psycopg import pq

from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters, RangeRequest
from pgsluice.replicator.source.connection import Connection
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.message import WHOLE, cut
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders

MOST_KEY_BYTES = 4096
"""Limit of ``SnapshotHeaders.last_key``: with the other headers it has to fit into ``stream_share.HEADER_BYTES``."""

_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}

ROUNDS_PER_TURN = 16  # of reading what libpq has received (16 KiB), then the event loop's other tasks have a turn


class RowBlock(NamedTuple):
    """COPY text: ``rows`` whole rows, each ended by a line feed. ``is_last``: the range has no more."""

    rows: int
    data: bytes
    is_last: bool


class CopyFailedError(Exception):
    """The server ended COPY with an error. ``sqlstate`` is "" when the connection broke."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(sqlstate, text)
        self.sqlstate = sqlstate
        self.text = text


class CopyReader:
    """Reads COPY statements on one connection, one after the other; nothing else may use the connection meanwhile."""

    def __init__(self, connection: Connection) -> None:
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1

    async def blocks(self, query: str, cut_bytes: int) -> AsyncIterator[RowBlock]:
        """Yields pieces of at least ``cut_bytes`` and at most one row more, except the last one, which may be empty;
        there is always a last one. Raises CopyFailedError."""
        await self._start(query)
        read, consume = self._pgconn.get_copy_data, self._consume
        rows: list[bytes] = []
        size = rounds = count = 0
        while True:
            length, row = read(1)
            if length == 0:
                consume()
                rounds += 1
                if rounds % ROUNDS_PER_TURN == 0:
                    await asyncio.sleep(0)
                length, row = read(1)
            if length > 0:
                rows.append(bytes(row))
                size += length
                if size >= cut_bytes:
                    yield RowBlock(len(rows), b"".join(rows), is_last=False)
                    count += len(rows)
                    rows, size = [], 0
            elif length == 0:
                await self._wait_socket(readable=True)
            else:
                break
        count += len(rows)
        sent = await self._finish()
        if sent != count:
            raise CopyFailedError("", f"the server sent {sent} rows, and {count} arrived")
        yield RowBlock(len(rows), b"".join(rows), is_last=True)

    async def _start(self, query: str) -> None:
        self._pgconn.send_query(query.encode())
        while self._pgconn.flush():
            await self._wait_socket(readable=False)
        while self._pgconn.is_busy():
            await self._wait_socket(readable=True)
            self._consume()
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            await self._finish(result)
            raise CopyFailedError("", "the server did not start COPY")

    async def _finish(self, result: pq.abc.PGresult | None = None) -> int:
        """Takes the statement's results; returns the server's count of the rows sent. Raises the error among them."""
        failed: pq.abc.PGresult | None = None
        rows = 0
        while True:
            if result is not None and result.status == pq.ExecStatus.COMMAND_OK:
                rows = result.command_tuples or 0
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                failed = failed or result
            while self._pgconn.is_busy():
                await self._wait_socket(readable=True)
                self._consume()
            result = self._pgconn.get_result()
            if result is None:
                break
        if failed is not None:
            raise copy_failed(failed)
        return rows

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise CopyFailedError("", str(error)) from None

    async def _wait_socket(self, *, readable: bool) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._pgconn.socket
        ready = loop.create_future()
        add, remove = (loop.add_reader, loop.remove_reader) if readable else (loop.add_writer, loop.remove_writer)
        add(descriptor, _set_ready, ready)
        try:
            await ready
        finally:
            remove(descriptor)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def copy_failed(result: pq.abc.PGresult) -> CopyFailedError:
    sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"connection lost").decode("utf-8", "replace")
    return CopyFailedError(sqlstate, " ".join(text.split()))


class RangeMessages:
    """The messages of a range, a function of its rows: pure.

    Numbers them and counts what is in them; to be given every block of the range in order.
    """

    def __init__(self, parameters: CopyParameters, request: RangeRequest) -> None:
        self._parameters = parameters
        self._request = request
        self._number = 0
        self._last_key = ""
        self.rows = 0
        self.bytes = 0
        self.is_whole = True
        """No body was cut into chunks."""

    def body_bytes(self, block: RowBlock) -> int:
        """Returns the size of the block's body."""
        return len(self._request.head) + len(block.data)

    def next(self, block: RowBlock, read: RowBlock | None = None) -> Iterator[tuple[SnapshotHeaders, bytes]]:
        """Yields one message, or several chunks when the block's body is too large; a body counts with its last chunk.
        ``read`` are the source rows of the block's, if steps made them."""
        read = read or block
        for chunk, data in cut(self._request.head + block.data, self._parameters.share.chunk_bytes):
            if chunk.is_last:
                self.rows += block.rows
                self.bytes += len(block.data)
                if read.rows and self._request.key_fields:
                    self._last_key = last_key(read.data, self._request.key_fields)
            self.is_whole = self.is_whole and chunk == WHOLE
            self._number += 1
            headers = SnapshotHeaders(
                snapshot=self._parameters.snapshot_id,
                oid=self._request.pages.table_oid,
                attempt=self._request.attempt,
                range_number=self._request.pages.number,
                number=self._number,
                rows=block.rows if chunk.is_last else 0,
                range_rows=self.rows,
                range_bytes=self.bytes,
                is_range_end=block.is_last and chunk.is_last,
                chunk=chunk,
                ledger_revision=self._request.ledger_revision,
                last_key=self._last_key,
                mark=self._request.mark,
            )
            yield headers, data


def last_key(data: bytes, fields: Sequence[int]) -> str:
    """Returns the last row's fields as JSON. Raises TerminalError when they are too large for a header."""
    values = data[data.rfind(b"\n", 0, -1) + 1 : -1].split(b"\t")
    return encode_key([_ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), values[field]).decode() for field in fields])


def encode_key(texts: Sequence[str]) -> str:
    """Raises TerminalError when they are too large for a header."""
    encoded = json.dumps(list(texts))
    if len(encoded) > MOST_KEY_BYTES:
        raise TerminalError(
            f"a row has a key of {len(encoded)} bytes, and {MOST_KEY_BYTES} is the most", "take shorter columns as the key"
        )
    return encoded
