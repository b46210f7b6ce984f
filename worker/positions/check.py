"""Finds where in the group's streams a worker continues from its sink's position.

The position is a sequence, which alone proves nothing: a broker that lost its newest messages, as after a power cut,
reuses their sequences when the changes are published again, packed in another way. The proof that the stream still
holds the applied changes is the transaction that was applied last, known by its commit LSN and its commit time. It has
to be the last one of the message at the position; or the stream holds it elsewhere: then the worker continues there,
and leaves the applied changes out of the message that holds it. A stream that ends before it may still come to hold it:
the replicator publishes again what was not confirmed to the slot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgsluice.shared.broker.streams import ChangeStream, StoredMessage, StreamState
from pgsluice.shared.errors import Cause, HistoryError, StreamBehindError, TransientError
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Anchor, format_lsn
from pgsluice.worker.batches.change_reader import Body
from pgsluice.worker.sinks.sink import Applied, CatchUp, Lane

_COPY_AGAIN = "restore the stream, or run 'pgsluice drop' and copy the tables again into an empty target"


@dataclass(frozen=True, slots=True)
class Start:
    """``applied`` with the sequence at which the stream holds it now. ``before`` is what the next message names as before it,
    None when that is the last change applied. Changes that commit before ``applied_before`` are applied. ``catch_up`` is the same
    for tables that catch up, None where they are in their place."""

    applied: Applied
    before: Anchor | None = None
    applied_before: int = 0
    catch_up: Start | None = None

    def of(self, lane: Lane) -> Start:
        """Returns the start of that lane of changes."""
        return self if lane is Lane.CHANGES else self.catch_up or Start(self.applied)


async def find_start(stream: ChangeStream, names: GroupNames, applied: Applied, state: StreamState | None) -> Start:
    """Returns where to continue in the stream of changes; its ``state`` is newer than ``applied``, and None when the
    group only copied.

    Raises HistoryError when the stream is not the one that was applied, or lost messages that were not;
    StreamBehindError when it ends before what is applied; TransientError when NATS does not answer.
    """
    if state is None:
        if applied.sequence:
            raise HistoryError(
                f"stream {names.changes_stream} is gone, and {applied.sequence} messages of it are applied", _COPY_AGAIN
            )
        return Start(applied)
    if applied.stream_created and applied.stream_created != state.created:
        raise HistoryError(
            f"stream {names.changes_stream} was created again since this worker last ran ({state.created})",
            "its sequences mean something else now; drop the group on both sides and copy the tables again",
        )
    start = await _Search(stream, applied, state).find()
    if applied.catch_up is None:
        return start
    return await _with_catch_up(start, applied.catch_up, stream, state)


async def _with_catch_up(start: Start, catch_up: CatchUp, stream: ChangeStream, state: StreamState) -> Start:
    """Adds the start of tables that catch up: their applied changes end with an earlier transaction of the same stream."""
    here = Applied(catch_up.sequence, catch_up.commit_lsn, catch_up.committed_at, start.applied.stream_created)
    found = await _Search(stream, here, state).find()
    if found == Start(here):
        return start
    applied = replace(start.applied, catch_up=replace(catch_up, sequence=found.applied.sequence))
    return replace(start, applied=applied, catch_up=found)


def check_goes_on(names: GroupNames, applied: Applied, state: StreamState | None) -> None:
    """Checks, as far as its state shows it, that the stream that is being read still is the one of ``applied``;
    ``state`` is newer than ``applied``. Raises HistoryError or StreamBehindError: then it was replaced or put back
    under a running worker."""
    if state is not None and applied.stream_created in ("", state.created) and applied.sequence <= state.last_sequence:
        return
    if not applied.sequence:
        return
    if state is not None and applied.stream_created == state.created:
        raise StreamBehindError(
            f"stream {names.changes_stream} ends at message {state.last_sequence}, before the applied position"
            f" ({applied.sequence}): the broker lost messages",
            "started again, the worker looks for its place in the stream",
        )
    raise HistoryError(
        f"stream {names.changes_stream} was removed or created again while the worker read it",
        "drop the group on both sides and copy the tables again",
    )


def check_snapshot_position(names: GroupNames, applied: Applied, stream: StreamState | None) -> None:
    """Raises HistoryError when the snapshot stream, which a group that never copied does not have, is not the one that the
    position counts in, or lost messages that were not applied."""
    if stream is None:
        if applied.snapshot_sequence:
            raise _lost_messages(names.snapshot_stream, 0, applied.snapshot_sequence)
    elif applied.snapshot_sequence > stream.last_sequence:
        raise _lost_messages(names.snapshot_stream, stream.last_sequence, applied.snapshot_sequence)
    else:
        _check_first(names.snapshot_stream, applied.snapshot_sequence, stream)


def _check_first(name: str, applied: int, stream: StreamState) -> None:
    if stream.first_sequence > applied + 1:
        raise HistoryError(
            f"stream {name} begins at message {stream.first_sequence}; "
            f"messages {applied + 1} to {stream.first_sequence - 1} were not applied by this worker and are gone",
            "raise --retention (nats-stream-max-age, where a worker publishes the group) for workers that are down for long; "
            "drop the group and copy the tables again, or, where it reads Kafka, give this worker a separate group and an "
            "empty target",
        )


def check_first(state: StreamState, applied: Applied, name: str) -> None:
    """Raises HistoryError when messages that were not applied are gone, by their sequences."""
    if applied.stream_created in ("", state.created):
        _check_first(name, applied.caught_up_sequence, state)


def _lost_messages(name: str, last_sequence: int, applied: int) -> HistoryError:
    return HistoryError(
        f"stream {name} ends at message {last_sequence}, before the applied position ({applied})",
        "the broker lost messages; restore it, or drop the group and copy the tables again",
    )


class _Search:
    """The search for the transaction that was applied last, in one stream."""

    def __init__(self, stream: ChangeStream, applied: Applied, state: StreamState) -> None:
        self._stream = stream
        self._applied = applied
        self._state = state

    async def find(self) -> Start:
        applied, state = self._applied, self._state
        if not applied.commit_lsn or await self._is_where_it_was():
            _check_first(self._stream.name, applied.sequence, state)
            return Start(applied)
        if state.messages == 0:
            _check_first(self._stream.name, applied.sequence, state)
            raise self._not_there("is empty")
        sequence = await self._first_that_reaches()
        return await self._start_in(sequence)

    async def _is_where_it_was(self) -> bool:
        """Returns whether the message at the position ends with the transaction that was applied last; or, when
        retention removed that message, whether the one after it names it. For an empty stream that ends there no check
        is possible."""
        sequence, state = self._applied.sequence, self._state
        if state.first_sequence <= sequence <= state.last_sequence:
            headers = MessageHeaders.decode((await self._message(sequence)).headers)
            anchor = headers.anchor or Anchor(headers.last, 0, self._applied.committed_at)
            return headers.chunk.is_last and headers.settled == sequence and self._is_applied_last(anchor)
        if state.first_sequence == sequence + 1 <= state.last_sequence:
            after = MessageHeaders.decode((await self._message(sequence + 1)).headers).after
            return after is None or self._is_applied_last(after)
        return state.messages == 0 and state.last_sequence == sequence

    def _is_applied_last(self, anchor: Anchor) -> bool:
        applied = self._applied
        return (anchor.position.commit_lsn, anchor.committed_at) == (applied.commit_lsn, applied.committed_at)

    async def _first_that_reaches(self) -> int:
        """Returns the first message whose last change commits at the applied commit LSN or later; a binary search,
        since positions ascend."""
        low, high = self._state.first_sequence, self._state.last_sequence
        newest = MessageHeaders.decode((await self._message(high)).headers).last.commit_lsn
        if newest < self._applied.commit_lsn:
            raise StreamBehindError(
                f"stream {self._stream.name} ends at the commit {format_lsn(newest)}, before the applied position "
                f"({format_lsn(self._applied.commit_lsn)}): the broker lost messages",
                "start the replicator, which publishes them again if the source still has them",
            )
        while low < high:
            middle = (low + high) // 2
            if MessageHeaders.decode((await self._message(middle)).headers).last.commit_lsn >= self._applied.commit_lsn:
                high = middle
            else:
                low = middle + 1
        return low

    async def _start_in(self, sequence: int) -> Start:
        """``sequence`` is the first message's, perhaps a chunk, that ends with the transaction or beyond it: that
        message must hold it, wholly or its beginning."""
        applied = self._applied
        body = await self._body_that_reaches(sequence)
        if body.after is not None and self._is_applied_last(body.after):
            return Start(replace(applied, sequence=body.first_sequence - 1))
        message = decode_changes(
            body.data, first_sequence=body.first_sequence, sequence=body.sequence, first_ordinal=body.first_ordinal
        )
        held = any((t.commit_lsn, t.committed_at) == (applied.commit_lsn, applied.committed_at) for t in message.transactions)
        if not held or (body.after is None and body.first_sequence > 1):
            _check_first(self._stream.name, applied.sequence, self._state)
            raise self._not_there(f"has another transaction in its place, message {body.sequence}")
        return Start(replace(applied, sequence=body.first_sequence - 1), body.after, applied.commit_lsn + 1)

    async def _body_that_reaches(self, sequence: int) -> Body:
        """Returns the first complete body, from the chunk at ``sequence`` on, that ends at the applied commit LSN or
        later. Skips groups of chunks that were begun again."""
        at = sequence - MessageHeaders.decode((await self._message(sequence)).headers).chunk.index + 1
        pieces: list[bytes] = []
        while at <= self._state.last_sequence:
            message = await self._message(at)
            headers = MessageHeaders.decode(message.headers)
            if headers.chunk.index == 1:
                pieces = []
            pieces.append(message.data)
            if headers.in_kafka:
                raise self._not_there(f"has other records in its place, message {at}")
            if len(pieces) == headers.chunk.count and headers.last.commit_lsn >= self._applied.commit_lsn:
                first = at - headers.chunk.count + 1
                return Body(first, at, headers.first.ordinal, headers.body(pieces), headers.anchor, headers.after)
            at += 1
        raise StreamBehindError(
            f"the newest message of stream {self._stream.name} is not complete", "start the replicator, which completes it"
        )

    async def _message(self, sequence: int) -> StoredMessage:
        message = await self._stream.message(sequence)
        if message is None:
            raise TransientError(
                f"stream {self._stream.name} does not show its message {sequence}", "it is tried again", Cause.NATS
            )
        return message

    def _not_there(self, found: str) -> HistoryError:
        applied = self._applied
        return HistoryError(
            f"the applied changes end with the transaction at {format_lsn(applied.commit_lsn)} (message {applied.sequence} of "
            f"stream {self._stream.name}), but the stream {found}",
            _COPY_AGAIN,
        )
