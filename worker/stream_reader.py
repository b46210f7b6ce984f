"""Reading the change stream synchronously: in the planner process and in Spark tasks.

Each process keeps one reader, and with it one NATS connection, for as long as it lives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nats.aio.client import Client

from shared.errors import TerminalError, TransientError
from shared.jetstream import ChangeStream, StoredMessage, StreamState, connect
from shared.message import MessageHeaders
from shared.names import GroupNames
from shared.settings import NatsSettings
from worker.event_loop import EventLoopThread

FETCH_BYTES = 4 * 1024 * 1024  # of one direct get: bounds what is held undecoded
FETCH_MESSAGES = 1024
SHORT_ANSWER_DEADLINE_S = 30.0
SHORT_ANSWER_PAUSE_S = 0.05

_log = logging.getLogger(__name__)


class Body(NamedTuple):
    """One message body, its chunks joined. ``first_sequence`` is the sequence of its first chunk, ``sequence`` of its last."""

    first_sequence: int
    sequence: int
    first_ordinal: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """What a message's headers say about the stream up to and including it; ``bytes_before`` excludes the message itself."""

    sequence: int
    settled: int
    bytes_before: int
    bytes_through: int


class StreamReader:
    """Blocking calls; every one raises TransientError when NATS does not answer, and connects again at the next call."""

    def __init__(self, settings: NatsSettings, group: str) -> None:
        self._settings = settings
        self._names = GroupNames(group)
        self._loop = EventLoopThread("pgsluice-nats")
        self._client: Client | None = None

    def state(self) -> StreamState | None:
        return self._loop.run(self._stream().state())

    def mark(self, sequence: int) -> Mark | None:
        """None when the stream does not hold that message (yet, or any more)."""
        return _mark(self._loop.run(self._stream().message(sequence)))

    def last_mark(self) -> Mark | None:
        """None when the stream is empty."""
        return _mark(self._loop.run(self._stream().last_message()))

    def bodies(self, first_sequence: int, last_sequence: int) -> Iterator[Body]:
        """The bodies whose first chunk lies in the range, in order.

        Chunks at the start that belong to a body before the range are left out; a body that begins in the range is read to its
        end, even past ``last_sequence``. A group of chunks that was begun again (its publisher died) is left out too: the
        same changes follow. Raises TerminalError when a message in the range is missing.
        """
        pending: list[bytes] = []
        pending_first = pending_ordinal = 0
        for message in self._messages(first_sequence):
            headers = MessageHeaders.decode(message.headers)
            chunk = headers.chunk
            if chunk.index == 1:
                if message.sequence > last_sequence:
                    return
                pending, pending_first, pending_ordinal = [message.data], message.sequence, headers.first.ordinal
            elif len(pending) == chunk.index - 1:
                pending.append(message.data)
            if chunk.is_last and len(pending) == chunk.count:
                yield Body(pending_first, message.sequence, pending_ordinal, b"".join(pending))
                pending = []
            if message.sequence >= last_sequence and not pending:
                return

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._loop.run(client.close())
        self._loop.close()

    def _stream(self) -> ChangeStream:
        if self._client is None:
            self._client = self._loop.run(connect(self._settings, f"pgsluice worker {self._names.group}"))
        return ChangeStream(self._client, self._names)

    def _messages(self, first_sequence: int) -> Iterator[StoredMessage]:
        """Every message from ``first_sequence`` on, without a gap; asks again when an answer is short (a follower that lags)."""
        expected = first_sequence
        deadline = time.monotonic() + SHORT_ANSWER_DEADLINE_S
        while True:
            messages = self._loop.run(self._stream().fetch(expected, FETCH_MESSAGES, FETCH_BYTES))
            for message in messages:
                if message.sequence != expected:
                    raise self._gap(expected, message.sequence)
                expected += 1
                yield message
            if messages:
                deadline = time.monotonic() + SHORT_ANSWER_DEADLINE_S
            elif time.monotonic() > deadline:
                raise TransientError(
                    f"stream {self._names.changes_stream} does not deliver message {expected}",
                    "check the stream's leader and replicas",
                )
            else:
                time.sleep(SHORT_ANSWER_PAUSE_S)

    def _gap(self, expected: int, found: int) -> TerminalError:
        return TerminalError(
            f"stream {self._names.changes_stream} no longer holds messages {expected} to {found - 1}, which were not applied",
            "they were removed by hand or the stream was recreated; drop the group and copy the tables again",
        )


def _mark(message: StoredMessage | None) -> Mark | None:
    if message is None:
        return None
    headers = MessageHeaders.decode(message.headers)
    return Mark(message.sequence, headers.settled, headers.total_bytes - len(message.data), headers.total_bytes)


_readers: dict[tuple[NatsSettings, str], StreamReader] = {}


def process_reader(settings: NatsSettings, group: str) -> StreamReader:
    """This process's reader of that group; made at the first call."""
    reader = _readers.get((settings, group))
    if reader is None:
        reader = _readers[settings, group] = StreamReader(settings, group)
    return reader
