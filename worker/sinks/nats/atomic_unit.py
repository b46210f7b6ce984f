"""A unit: messages that become visible together, as one atomic batch of JetStream, framed as they are sent.

Values that are known only when it is sent are in the first frame (the sequence that the unit follows) and in the last
one (the state after it). All between them can be made before, by the task that has the messages.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Self

from pgsluice.worker.sinks.nats.outgoing import MessageSection, Outgoing

BATCH_ID_DIGITS = 12  # it is in every message; no two batches of one stream are under way with the same
_NUMBERS = [b"%d" % number for number in range(1001)]
_HEAD = b"NATS/1.0\r\nNats-Msg-Id:%b\r\n%b\r\n"
_SHORTEST_HEAD = len(_HEAD % (b"", b"Nats-Batch-Id:\r\nNats-Batch-Sequence:\r\n")) + BATCH_ID_DIGITS
"""Length of a middle message's head, without its id, its own headers and the digits of its number."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Picklable. ``between`` are the frames of all messages but ``first``, which a unit of one message has not, and ``last``."""

    batch_id: bytes
    count: int
    first: Outgoing | None
    between: bytes
    last: Outgoing

    @classmethod
    def of(cls, messages: MessageSection) -> Self:
        """Returns a unit of at least one message."""
        batch_id = uuid.uuid4().hex[:BATCH_ID_DIGITS].encode()
        first = messages.message(0) if len(messages) > 1 else None
        return cls(batch_id, len(messages), first, b"".join(_frames_between(messages, batch_id)), messages.message(-1))

    def opening(self, follows: int) -> list[bytes]:
        """Returns the frames before the message that commits the unit; ``follows`` is the sequence before it."""
        if self.first is None:
            return []
        return [frame(self.first, self._headers(1, follows)), self.between]

    def closing(self, follows: int, headers: bytes, reply: bytes) -> bytes:
        """Returns the message that commits it, with more ``headers``; the server answers to ``reply``."""
        return frame(self.last, self._headers(self.count, follows) + b"Nats-Batch-Commit:1\r\n" + headers, reply)

    def _headers(self, number: int, follows: int) -> bytes:
        headers = b"Nats-Batch-Id:%b\r\nNats-Batch-Sequence:%d\r\n" % (self.batch_id, number)
        return headers + b"Nats-Expected-Last-Sequence:%d\r\n" % follows if number == 1 else headers


def frame(message: Outgoing, headers: bytes, reply: bytes = b"") -> bytes:
    """Encodes a frame (NATS manual: "Client Protocol", HPUB)."""
    head = _HEAD % (message.message_id, message.headers + headers)
    to = b"%b %b" % (message.subject, reply) if reply else message.subject
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(head), len(head) + len(message.data), head, message.data)


def _frames_between(messages: MessageSection, batch_id: bytes) -> list[bytes]:
    """Returns HPUB frames of all messages except the first and last, which need other headers."""
    end = len(messages) - 1
    numbers = _NUMBERS if end < len(_NUMBERS) else [b"%d" % number for number in range(end + 1)]
    batch = b"\r\nNats-Batch-Id:%b\r\nNats-Batch-Sequence:" % batch_id
    columns = (messages.subjects, messages.ids, numbers[1:], messages.headers, messages.data)
    return [
        b"HPUB %b %d %d\r\nNATS/1.0\r\nNats-Msg-Id:%b%b%b\r\n%b\r\n%b\r\n"
        % (
            subject,
            size := _SHORTEST_HEAD + len(message_id) + len(number) + len(headers),
            size + len(data),
            message_id,
            batch,
            number,
            headers,
            data,
        )
        for subject, message_id, number, headers, data in zip(*(column[1:end] for column in columns), strict=True)
    ]
