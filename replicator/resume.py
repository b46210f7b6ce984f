"""The start of a session, by the stream's end. The stream is the only record of what was published."""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.replicator.assembler import Published
from pgsluice.shared.broker.streams import ChangeStream, StoredMessage, StreamState
from pgsluice.shared.errors import START_AGAIN, Cause, TerminalError, TransientError
from pgsluice.shared.wire.message import ID_HEADER, MessageHeaders
from pgsluice.shared.wire.position import LSN, NO_ANCHOR, Anchor


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The stream's last message, after which publishing continues. ``anchor`` is the last complete message's, None when
    an earlier version published it; ``ddl`` is the newest sequence that holds a definition."""

    sequence: int
    settled: int
    total_bytes: int
    flushed: LSN
    anchor: Anchor | None = NO_ANCHOR
    ddl: int = 0


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """``published`` is for the assembler, to skip changes, ``end`` for the publisher, to continue."""

    published: Published
    end: StreamEnd


async def find_resume_point(stream: ChangeStream, state: StreamState, id_prefix: str, slot_flushed: LSN) -> ResumePoint:
    """``slot_flushed``, the slot's confirmed LSN, is where a group starts that has published nothing.

    Raises TerminalError when the stream's end is missing or another publisher's, TransientError when JetStream shows an
    old state.
    """
    if state.last_sequence == 0:
        return _beginning(slot_flushed, StreamEnd(0, 0, 0, slot_flushed))
    if state.messages == 0:
        raise TerminalError(
            f"stream {stream.name} was emptied by another client: its last published position is not known", START_AGAIN
        )
    last = await _message(stream, state.last_sequence)
    newest = _decode(stream, last, id_prefix)
    complete, headers = await _last_complete(stream, last, newest, id_prefix)
    if complete is None:
        return _beginning(slot_flushed, StreamEnd(last.sequence, 0, newest.total_bytes, slot_flushed))
    is_settled = headers.settled == complete.sequence
    is_due = slot_flushed <= headers.last.commit_lsn  # PostgreSQL sends what commits at the confirmed LSN or later
    published = Published(headers.last, headers.flushed, is_settled, headers.anchor, is_due, headers.counts_definitions)
    end = StreamEnd(last.sequence, headers.settled, newest.total_bytes, headers.flushed, headers.anchor, headers.ddl)
    return ResumePoint(published, end)


def _beginning(slot_flushed: LSN, end: StreamEnd) -> ResumePoint:
    return ResumePoint(Published(None, slot_flushed, settled=True), end)


async def _last_complete(
    stream: ChangeStream, message: StoredMessage, headers: MessageHeaders, id_prefix: str
) -> tuple[StoredMessage | None, MessageHeaders]:
    """Returns the newest message that is whole or a last chunk; None if the stream begins with its first unfinished
    group."""
    while not headers.chunk.is_last:
        before = message.sequence - headers.chunk.index
        if before == 0:
            return None, headers
        message = await _message(stream, before)
        headers = _decode(stream, message, id_prefix)
    return message, headers


async def _message(stream: ChangeStream, sequence: int) -> StoredMessage:
    message = await stream.message(sequence)
    if message is None:
        raise TransientError(
            f"stream {stream.name} does not show its message {sequence}",
            "it is tried again; check the health of the NATS cluster",
            Cause.NATS,
        )
    return message


def _decode(stream: ChangeStream, message: StoredMessage, id_prefix: str) -> MessageHeaders:
    if not message.headers.get(ID_HEADER, "").startswith(id_prefix):
        raise TerminalError(
            f"message {message.sequence} of stream {stream.name} was not published from this source and slot",
            f"find out which program writes into it, then {START_AGAIN}",
        )
    return MessageHeaders.decode(message.headers)
