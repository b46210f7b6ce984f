"""COPY BOTH mode: the bytes that a walsender sends and hears, over a connection that libpq opened.

``PlainCopyBoth`` reads the socket itself, as much as there is at once; libpq would read 16 KiB, and then allocate, copy and hand
over each message for itself, which costs more than everything else that is done with a change. It also sends the command that
starts the stream, so libpq, which has answered everything before, holds no byte of it. From then on libpq must not read: it is
only asked why a connection broke that has nothing left to read, and to close it.

``LibpqCopyBoth`` is for connections that libpq encrypts. It gives the same bytes.
"""

from __future__ import annotations

import os
from typing import Protocol

import psycopg
from psycopg import pq

from pgsluice.replicator.source import copy_data
from pgsluice.replicator.source.copy_data import WantedMessages, encode_message, message_end, message_head, missing_bytes
from pgsluice.replicator.source.stream_end import broken, ended, result_error, stream_error
from pgsluice.shared.errors import PgsluiceError, TransientError

READ_BYTES = 256 * 1024


class CopyBoth(Protocol):
    """A stream that has begun. Nothing here blocks; every method raises TransientError when the connection is broken."""

    def receive(self) -> bytes | None:
        """Returns messages that the server sent (``copy_data``), the last one maybe not whole; None when nothing has
        arrived."""

    def keep(self, rest: bytes) -> None:
        """Takes back the end of what ``receive`` gave, which is not a whole message; the next one begins with it."""

    def send(self, content: bytes) -> None:
        """Sends a CopyData message; what the socket does not take goes with a later call."""

    def finish(self) -> None:
        """Sends the end of the client's stream: the server stops sending, and confirms that after data under way."""


def end_error(message: bytes) -> PgsluiceError:
    """Returns the error for a message of the server that is neither CopyData nor ignored."""
    match message[0]:
        case copy_data.ERROR_RESPONSE:
            return stream_error(copy_data.error_fields(message[5:]))
        case copy_data.COPY_DONE | copy_data.COMMAND_COMPLETE:
            return ended()
    return broken(f"the server sent a message of kind 0x{message[0]:02x}")


def socket_of(pgconn: pq.abc.PGconn) -> int:
    """Raises TransientError when the connection has ended: libpq closes its socket as soon as it reads that."""
    try:
        return pgconn.socket
    except psycopg.Error as error:
        raise broken(error) from None


class PlainCopyBoth:
    """The stream of a connection that is not encrypted and on which libpq waits for nothing. ``start`` comes before
    everything else. It discards logical messages that are not ``wanted`` as they arrive, at least if they do not arrive
    whole."""

    def __init__(self, pgconn: pq.abc.PGconn, wanted: WantedMessages | None = None) -> None:
        self._pgconn = pgconn
        self._wanted = wanted
        self._unsent = b""
        self._unread = b""  # whole messages, maybe, that arrived with the answer to the command
        self._pieces: list[bytes] = []  # of a message that is not whole, which has _missing bytes more
        self._missing = 0
        self._unwanted = 0  # bytes that come next

    def start(self, command: str) -> None:
        self._send(encode_message(copy_data.QUERY, command.encode() + b"\0"))

    def started(self) -> bool:
        """Returns whether the server has answered that the stream begins. Raises the error that it answered instead."""
        data, start = self.receive() or b"", 0
        while (end := message_end(data, start)) >= 0:
            kind = data[start]
            if kind == copy_data.COPY_BOTH_RESPONSE:
                self._unread = data[end:]
                return True
            if kind not in copy_data.PASSED_OVER:
                raise end_error(data[start:end])
            start = end
        self.keep(data[start:])
        return False

    def receive(self) -> bytes | None:
        if self._unsent:
            self._send(b"")
        if self._unread:
            unread, self._unread = self._unread, b""
            return unread
        try:
            arrived = os.read(socket_of(self._pgconn), READ_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            arrived = b""
        except OSError as error:
            raise broken(f"cannot receive: {error.strerror}") from None
        if not arrived:
            raise self._end_of_connection()
        if self._unwanted:
            unwanted = min(self._unwanted, len(arrived))
            self._unwanted -= unwanted
            return arrived[unwanted:]
        if not self._pieces:
            return arrived
        self._pieces.append(arrived)
        self._missing -= len(arrived)
        if self._missing > 0:
            return b""
        whole, self._pieces = b"".join(self._pieces), []
        return whole

    def keep(self, rest: bytes) -> None:
        if rest:
            try:
                self._missing = missing_bytes(rest) if self._wanted is None else self._wanted.lacking_bytes(rest)
            except ValueError as error:
                raise broken(f"the server sent {error}") from None
            if self._wanted is not None:
                self._unread, self._unwanted = self._wanted.beginning(rest)
            self._pieces = [] if self._unwanted else [rest]

    def send(self, content: bytes) -> None:
        self._send(encode_message(copy_data.COPY_DATA, content))

    def finish(self) -> None:
        self._send(encode_message(copy_data.COPY_DONE, b""))

    def _send(self, message: bytes) -> None:
        self._unsent += message
        try:
            self._unsent = self._unsent[os.write(socket_of(self._pgconn), self._unsent) :]
        except BlockingIOError:
            return
        except (OSError, TransientError):
            self._unsent = b""  # the server is gone: its last words are still to be read, and then the end of the connection

    def _end_of_connection(self) -> PgsluiceError:
        """Returns the error of a connection that has nothing left to read; libpq, which meets the same error, has the
        words for it."""
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            return broken(error)
        return broken("it has ended")


class LibpqCopyBoth:
    """The stream of any connection, after libpq has started it."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._ended = False

    def receive(self) -> bytes | None:
        read, parts, total = self._pgconn.get_copy_data, list[bytes | memoryview](), 0
        if self._ended:
            raise self._end_error()
        try:
            size, content = read(1)
            if size == 0:
                self._pgconn.consume_input()
                size, content = read(1)
            while size > 0:
                parts += (message_head(copy_data.COPY_DATA, size), content)
                total += size
                if total >= READ_BYTES:
                    break
                size, content = read(1)
        except psycopg.Error as error:
            raise broken(error) from None
        self._ended = size < 0
        if parts:
            return b"".join(parts)
        if self._ended:
            raise self._end_error()
        return None

    def keep(self, rest: bytes) -> None:
        assert not rest, "libpq gives whole messages"

    def send(self, content: bytes) -> None:
        try:
            self._pgconn.put_copy_data(content)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise broken(error) from None

    def finish(self) -> None:
        try:
            self._pgconn.put_copy_end()
            self._pgconn.flush()
        except psycopg.Error as error:
            raise broken(error) from None

    def _end_error(self) -> PgsluiceError:
        try:
            result = self._pgconn.get_result()
        except psycopg.Error as error:
            return broken(error)
        if result is None or result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
            return ended()
        return result_error(result)
