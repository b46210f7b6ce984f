"""Where a session starts: what the stream's end says, and whether slot, stream and state bucket agree.

The stream is the only memory of what was published. The slot and the bucket are compared with it at every start of a session,
because each of the three can be replaced or restored behind our back, and going on would leave a gap that nobody sees. The source
itself can go back in its history, and then gives out again the LSNs of what was published: so the stream must not be beyond the
end of the source's WAL, nor beyond the place where the source left the timeline that was published from. Where that cannot tell,
what the server sends does (``Published.is_due``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.replicator.assembler import Published
from pgsluice.replicator.publisher import StreamEnd
from pgsluice.replicator.source.slot import ReplicationSlot
from pgsluice.replicator.source.walsender import SystemIdentity
from pgsluice.shared.broker.replicator_records import ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream, StoredMessage, StreamState
from pgsluice.shared.errors import HistoryError, TerminalError, TransientError
from pgsluice.shared.wire.lsn import LSN, format_lsn, parse_lsn
from pgsluice.shared.wire.message import ID_HEADER, MessageHeaders

_START_AGAIN = "run 'pgsluice drop' and start again with an empty target"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """``published`` tells the assembler what to skip, ``end`` tells the publisher what to continue."""

    published: Published
    end: StreamEnd


async def find_resume_point(stream: ChangeStream, state: StreamState, id_prefix: str, slot_flushed: LSN) -> ResumePoint:
    """``slot_flushed``, the slot's confirmed LSN, is where a group starts that has published nothing.

    Raises TerminalError when the stream's end is missing or not ours, TransientError when JetStream shows an old state.
    """
    if state.last_sequence == 0:
        return _beginning(slot_flushed, StreamEnd(0, 0, 0, slot_flushed))
    if state.messages == 0:
        raise TerminalError(f"stream {stream.name} was emptied by somebody: what was published last is not known", _START_AGAIN)
    last = await _message(stream, state.last_sequence)
    newest = _decode(stream, last, id_prefix)
    complete, headers = await _last_complete(stream, last, newest, id_prefix)
    if complete is None:
        return _beginning(slot_flushed, StreamEnd(last.sequence, 0, newest.total_bytes, slot_flushed))
    is_settled = headers.settled == complete.sequence
    is_due = slot_flushed <= headers.last.commit_lsn  # PostgreSQL sends what commits at the confirmed LSN or later
    published = Published(headers.last, headers.flushed, is_settled, headers.anchor, is_due)
    end = StreamEnd(last.sequence, headers.settled, newest.total_bytes, headers.flushed, headers.anchor)
    return ResumePoint(published, end)


def _beginning(slot_flushed: LSN, end: StreamEnd) -> ResumePoint:
    return ResumePoint(Published(None, slot_flushed, settled=True), end)


async def _last_complete(
    stream: ChangeStream, message: StoredMessage, headers: MessageHeaders, id_prefix: str
) -> tuple[StoredMessage | None, MessageHeaders]:
    """The newest message that is whole or a last chunk; None when there is none before the stream's first unfinished group."""
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
        )
    return message


def _decode(stream: ChangeStream, message: StoredMessage, id_prefix: str) -> MessageHeaders:
    if not message.headers.get(ID_HEADER, "").startswith(id_prefix):
        raise TerminalError(
            f"message {message.sequence} of stream {stream.name} was not published from this source and slot",
            f"find out what writes into it, then {_START_AGAIN}",
        )
    return MessageHeaders.decode(message.headers)


def check_agreement(
    stream_name: str,
    state: StreamState,
    point: ResumePoint,
    recorded: ReplicatorRecord | None,
    slot: ReplicationSlot,
    created_lsn: LSN,
) -> None:
    """Raises TerminalError when the broker lost what was published or the slot was moved by somebody else.

    ``created_lsn`` is where the slot began: what it was told beyond that must show in the stream or in the record.
    """
    if recorded is not None and recorded.stream_created != state.created:
        raise HistoryError(f"stream {stream_name} was deleted and made again: published changes are gone", _START_AGAIN)
    if recorded is not None and recorded.stream_sequence > state.last_sequence:
        raise HistoryError(
            f"stream {stream_name} ends at {state.last_sequence}, but had acknowledged {recorded.stream_sequence}: "
            "the broker lost data",
            _START_AGAIN,
        )
    in_stream = point.published.flushed if point.published.last is not None else LSN(0)
    known = max(created_lsn, in_stream, parse_lsn(recorded.flushed_lsn) if recorded else LSN(0))
    if slot.confirmed_flush_lsn > known:
        raise HistoryError(
            f"replication slot {slot.name} is at {slot.confirmed_flush}, but stream {stream_name} ends at {format_lsn(known)}: "
            "the broker lost data, or somebody moved or recreated the slot",
            _START_AGAIN,
        )


def check_source_history(
    stream_name: str, point: ResumePoint, slot: ReplicationSlot, identity: SystemIdentity, timeline: int, switch_point: LSN | None
) -> None:
    """Raises HistoryError when the source went back behind what was published or confirmed. ``timeline`` is the one that was
    published from; when the source left it, ``switch_point`` says where."""
    in_stream = point.published.flushed if point.published.last is not None else LSN(0)
    known = max(in_stream, slot.confirmed_flush_lsn)
    if timeline != identity.timeline and (switch_point is None or known > switch_point):
        left = "at an unknown place" if switch_point is None else f"at {format_lsn(switch_point)}"
        raise HistoryError(
            f"the source left timeline {timeline} {left} for timeline {identity.timeline}, and stream {stream_name} holds what "
            f"was committed on timeline {timeline} up to {format_lsn(known)}: what lies between never happened on the new one",
            f"{_START_AGAIN}; with synchronized_standby_slots set at the source a failover slot is never ahead of its standby",
        )
    if known > identity.wal_end:
        raise HistoryError(
            f"stream {stream_name} and slot {slot.name} are at {format_lsn(known)}, the source's WAL ends at "
            f"{format_lsn(identity.wal_end)}: the source went back in its history (a restored backup, snapshot or disk)",
            _START_AGAIN,
        )
