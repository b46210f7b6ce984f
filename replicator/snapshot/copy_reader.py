"""COPY TO STDOUT received through libpq and cut into pieces of whole rows.

libpq gives one row at a time (manual: "Functions Associated with the COPY Command"), so the loop does no more for a row than
one call, one append and one comparison. Where a piece ends depends on the rows alone: the same rows give the same pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
from psycopg import pq

from replicator.connection import Connection
from replicator.snapshot.range_messages import Piece

ROUNDS_PER_TURN = 16  # of reading what libpq has received (16 KiB), then the event loop's other tasks have a turn


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

    async def pieces(self, query: str, cut_bytes: int) -> AsyncIterator[Piece]:
        """Pieces of at least ``cut_bytes`` and at most one row more, but for the last one, which may be empty; there is always a
        last one. Raises CopyFailedError."""
        await self._start(query)
        read, consume = self._pgconn.get_copy_data, self._consume
        rows: list[bytes] = []
        size = rounds = 0
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
                    yield Piece(len(rows), b"".join(rows), is_last=False)
                    rows, size = [], 0
            elif length == 0:
                await self._wait_socket(readable=True)
            else:
                break
        await self._finish()
        yield Piece(len(rows), b"".join(rows), is_last=True)

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

    async def _finish(self, result: pq.abc.PGresult | None = None) -> None:
        """Takes the statement's results; raises the error among them."""
        failed: pq.abc.PGresult | None = None
        while True:
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
    sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"connection lost").decode("utf-8", "replace")
    return CopyFailedError(sqlstate, " ".join(text.split()))
