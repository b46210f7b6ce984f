"""Reading the change stream synchronously: in the driver and in Spark tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord
from pgsluice.shared.broker.streams import ChangeStream, StoredMessage, Stream, StreamState
from pgsluice.shared.errors import Cause, MissingMessagesError, TerminalError, TransientError
from pgsluice.shared.wire.message import ID_HEADER, MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Anchor
from pgsluice.worker.batches.broker_connection import BrokerConnection

FETCH_BYTES = 4 * 1024 * 1024  # of one direct get: bounds what is held undecoded
FETCH_MESSAGES = 1024
SHORT_ANSWER_DEADLINE_S = 30.0
SHORT_ANSWER_PAUSE_S = 0.05


class Body(NamedTuple):
    """One message body, its chunks joined, not compressed. ``first_sequence`` is the sequence of its first chunk, ``sequence`` of
    its last. ``anchor`` and ``after`` are those of the headers."""

    first_sequence: int
    sequence: int
    first_ordinal: int
    data: bytes
    anchor: Anchor | None = None
    after: Anchor | None = None


BodyElsewhere = Callable[[MessageHeaders, bytes], bytes]
"""The body of a message that only names it, as ``shared.wire.kafka_range``."""


def unreadable_elsewhere(headers: MessageHeaders, named: bytes) -> bytes:
    """Raises WireError, for a reader without Kafka."""
    return headers.body([named])


@dataclass(frozen=True, slots=True)
class Mark:
    """The facts about the stream up to and including a message, from its headers; ``bytes_before`` excludes the message
    itself. Bytes are of bodies before compression. ``begins``: its first change is the first of a transaction.
    ``anchor`` is its last change's. ``ddl`` is the newest sequence up to here that holds a definition (of chunks the
    last one), 0 when none does. ``chunks`` is how many its body came in."""

    sequence: int
    settled: int
    bytes_before: int
    bytes_through: int
    begins: bool = True
    anchor: Anchor | None = None
    ddl: int = 0
    chunks: int = 1


async def publisher_prefix(bucket: StateBucket, names: GroupNames) -> str:
    """Returns the prefix of the ids of the replicator's change messages; "" for a group that only copied."""
    entry = await bucket.read(GROUP_KEY, GroupRecord)
    return f"{entry.value.system_id}/{names.slot}/" if entry else ""


class ChangeReader:
    """Blocking calls; every one raises TransientError when NATS does not answer. ``id_prefix`` begins the ids of the
    group's own messages, to recognize messages of other publishers on the subject. ``elsewhere`` returns bodies that
    lie in Kafka."""

    def __init__(
        self, connection: BrokerConnection, id_prefix: str = "", elsewhere: BodyElsewhere = unreadable_elsewhere
    ) -> None:
        self._elsewhere = elsewhere
        self._connection = connection
        self._id_prefix = id_prefix
        self._name = connection.names.changes_stream

    def state(self) -> StreamState | None:
        return self._connection.ask(lambda client: self._stream(client).state())

    def mark(self, sequence: int) -> Mark | None:
        """Returns None when the stream does not hold that message (yet, or any more)."""
        return _mark(self._connection.ask(lambda client: self._stream(client).message(sequence)))

    def after(self, sequence: int) -> Anchor | None:
        """Returns the change that message ``sequence`` follows; None where that is not known."""
        message = self._connection.ask(lambda client: self._stream(client).message(sequence))
        return None if message is None else MessageHeaders.decode(message.headers).after

    def peek(self, sequence: int) -> Mark | None:
        """Returns None when the replica that was asked does not hold that message (yet, or any more)."""
        return _mark(self._connection.ask(lambda client: self._stream(client).peek(sequence)))

    def peek_last(self) -> Mark | None:
        """Returns the newest message of the replica that was asked, which may lag; None when it holds none."""
        return _mark(self._connection.ask(lambda client: self._stream(client).peek_last()))

    def peek_all(self, first_sequence: int, last_sequence: int) -> list[Mark]:
        """Returns the marks of these messages, as far as the replica that was asked holds them and one answer has room
        for them."""
        count = last_sequence - first_sequence + 1
        messages = self._connection.ask(lambda client: self._stream(client).fetch(first_sequence, count, FETCH_BYTES))
        return [mark for message in messages if message.sequence <= last_sequence and (mark := _mark(message)) is not None]

    def bodies(self, first_sequence: int, last_sequence: int) -> Iterator[Body]:
        """Yields the bodies whose first chunk lies in the range, in order.

        Chunks at the start that belong to a body before the range are left out; a body that begins in the range is read
        to its end, even past ``last_sequence``. A group of chunks that was begun again (its publisher died) is left out
        too: the same changes follow. Raises TerminalError when a message in the range is missing or another
        publisher's, WireError when it is malformed.
        """
        pending: list[bytes] = []
        pending_first = pending_ordinal = 0
        for message in consecutive_messages(self._connection, self._stream, first_sequence, last_sequence):
            self._check_publisher(message)
            headers = MessageHeaders.decode(message.headers)
            chunk = headers.chunk
            if chunk.index == 1:
                if message.sequence > last_sequence:
                    return
                pending, pending_first, pending_ordinal = [message.data], message.sequence, headers.first.ordinal
            elif len(pending) == chunk.index - 1:
                pending.append(message.data)
            if chunk.is_last and len(pending) == chunk.count:
                data = self._elsewhere(headers, b"".join(pending)) if headers.in_kafka else headers.body(pending)
                yield Body(pending_first, message.sequence, pending_ordinal, data, headers.anchor, headers.after)
                pending = []
            if message.sequence >= last_sequence and not pending:
                return

    def _check_publisher(self, message: StoredMessage) -> None:
        if not message.headers.get(ID_HEADER, "").startswith(self._id_prefix):
            raise TerminalError(
                f"message {message.sequence} of stream {self._name} was not published by the group's replicator",
                "find out who may publish on the group's subjects, revoke that right, and remove the message; nothing of it "
                "was applied",
            )

    def _stream(self, client: Client) -> ChangeStream:
        return ChangeStream(client, self._connection.names)


def consecutive_messages(
    connection: BrokerConnection, stream_of: Callable[[Client], Stream], first_sequence: int, last_sequence: int
) -> Iterator[StoredMessage]:
    """Yields every message of a stream from ``first_sequence`` on, also after ``last_sequence`` if the caller
    continues: those are not requested before. Asks again when an answer is short (a follower that lags).

    Raises MissingMessagesError at a gap, TransientError when the next message does not come within
    SHORT_ANSWER_DEADLINE_S.
    """
    expected = first_sequence
    deadline = time.monotonic() + SHORT_ANSWER_DEADLINE_S
    while True:
        asked = expected
        count = min(FETCH_MESSAGES, last_sequence - asked + 1) if asked <= last_sequence else FETCH_MESSAGES
        for message in connection.ask(lambda client, at, most: stream_of(client).fetch(at, most, FETCH_BYTES), asked, count):
            if message.sequence != expected:
                if connection.ask(lambda client, at: stream_of(client).message(at), expected) is not None:
                    break  # the replica that answered is not what the stream is
                raise MissingMessagesError(
                    f"messages {expected} to {message.sequence - 1} of {_about(connection)} are gone and were not applied",
                    "they were removed by hand or the stream was recreated; drop the group and copy the tables again",
                    message.sequence,
                )
            expected += 1
            yield message
        if expected > asked:
            deadline = time.monotonic() + SHORT_ANSWER_DEADLINE_S
        elif time.monotonic() > deadline:
            raise TransientError(
                f"message {expected} of {_about(connection)} does not arrive", "check the stream's replicas", Cause.NATS
            )
        else:
            time.sleep(SHORT_ANSWER_PAUSE_S)


def _about(connection: BrokerConnection) -> str:
    return f"a stream of group '{connection.names.group}'"


def _mark(message: StoredMessage | None) -> Mark | None:
    if message is None:
        return None
    headers = MessageHeaders.decode(message.headers)
    begins = headers.first.ordinal == 1 and headers.chunk.index == 1
    before = headers.bytes_before(message.data)
    return Mark(
        message.sequence, headers.settled, before, headers.total_bytes, begins, headers.anchor, headers.ddl, headers.chunk.count
    )
