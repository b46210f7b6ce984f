"""The NATS sink's side in the driver: extends the target stream from one stored state to the next.

The position is in the stream itself (``published_state``), so there is no moment at which data and position differ.
Between two units a batch may be half published; the process that takes it up again, this one or a successor, lets its
tasks continue after the last message that the stream holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

from nats.aio.client import Client

from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.streams import StoredMessage, StreamState
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import Cause, PgsluiceError, SinkBehindError, TerminalError, TransientError
from pgsluice.shared.wire.names import GroupNames, replayed_worker
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.nats.atomic_unit import Unit
from pgsluice.worker.sinks.nats.options import NatsSinkSettings
from pgsluice.worker.sinks.nats.outgoing import split_start
from pgsluice.worker.sinks.nats.prepared_target import limits_of
from pgsluice.worker.sinks.nats.published_state import NOWHERE, PublishedPlace, PublishedState
from pgsluice.worker.sinks.nats.subject_pattern import DEFAULT_PATTERN, SubjectPattern
from pgsluice.worker.sinks.nats.target_stream import TTL_HEADER, StreamMoved, TargetStream, Uncommitted
from pgsluice.worker.sinks.nats.unit_cutter import UnitCutter
from pgsluice.worker.sinks.nats.whole_transactions import decode_blocks
from pgsluice.worker.sinks.nats.writer import MessageWriter
from pgsluice.worker.sinks.place_names import PlaceNames
from pgsluice.worker.sinks.sink import Applied, Delivery, Lane, PartitionWriter, Receipt

HEADER_BYTES = 8 * 1024  # room for headers within max_payload
SETTLE_TIMEOUT_S = 3.0
CLOSE_TIMEOUT_S = SETTLE_TIMEOUT_S + 5.0
BEHIND_PATIENCE_S = 5.0


class NatsSink:
    """Holds one unit back until the next one is full or the batch ends: the last message of a batch marks it as
    complete."""

    delivery = Delivery.STREAMED

    def __new__(cls, settings: WorkerSettings, nats: NatsSinkSettings) -> Self:
        """Creates a ``GroupSink`` if ``nats-group`` is set."""
        if not nats.group or cls is not NatsSink:
            return super().__new__(cls)
        from pgsluice.worker.sinks.nats.group_sink import GroupSink  # which derives from what is here

        return super().__new__(GroupSink)  # type: ignore[return-value]

    def __init__(self, settings: WorkerSettings, nats: NatsSinkSettings) -> None:
        self._worker = f"{settings.group}/{replayed_worker(settings.name)}"
        self._is_replay = replayed_worker(settings.name) != settings.name
        self._nats = settings.nats
        self._form = replace(LineEncoding.of(nats.lines, settings.group), transactions=False)
        self.definitions = self._form.definitions
        own = SubjectPattern(DEFAULT_PATTERN, GroupNames(nats.group).changes_stream) if nats.group else None
        self._pattern = own or SubjectPattern.parse(nats.subject, nats.stream)
        self._cuts = nats.large_messages == "chunks"
        self._limits = limits_of(nats)
        self._state = PublishedState(self._worker, uuid.uuid4().hex)
        self._known = NOWHERE
        """The worker's place when the stream was last known to hold it."""
        self._is_sure = True
        """True if it is known for all sent messages whether the stream holds them."""
        self._behind_since: float | None = None
        """Time of the monotonic clock when the stream was first seen to end before its known end."""
        self._loop: EventLoopThread | None = None
        self._client: Client | None = None
        self._stream: TargetStream | None = None

    def open(self) -> Applied:
        if self._loop is None:
            self._loop = EventLoopThread("pgsluice-target-stream")
        if self._client is None:
            self._client = self._loop.run(connect(self._nats, f"pgsluice worker {self._worker} target"))
        self._stream = self._new_stream(self._client)
        self._loop.run(self._adopt(self._stream))
        return self._place.applied

    def place_names(self) -> PlaceNames | None:
        return self._pattern.place_names

    def _new_stream(self, client: Client) -> TargetStream:
        pattern = self._pattern
        subjects = [pattern.wildcard, pattern.position_subject]
        return TargetStream(client, pattern.stream, subjects, pattern.position_subject, self._limits)

    def renumber(self, applied: Applied) -> None:
        """Stores the new numbers. The place within a batch is a position, so it stays."""
        self._loop_thread.run(self._mark(replace(self._place, applied=applied)))

    def writer(self) -> PartitionWriter:
        """Returns the writer. Reads the stream first when its end is unknown."""
        assert self._client is not None, "open comes first"
        self._make_sure()
        most_bytes, place = self._client.max_payload - HEADER_BYTES, self._place
        start, copied_start = place.changes, place.copied
        return MessageWriter(self._form, self._pattern, most_bytes, self._cuts, start, copied_start, self._is_replay)

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        """Raises WriteAgain when tasks wrote from another place on than the stream holds by now."""
        self._make_sure()
        try:
            self._publish(receipts, stream_created)
        except StreamMoved:
            self._is_sure = False
            self._make_sure()
            raise TransientError(
                f"stream {self._pattern.stream} did not end where it was expected", "the batch is written again", Cause.NATS
            ) from None
        except TransientError:
            self._is_sure = False
            raise
        self._known = self._place
        return self._place.applied

    def finish_copy(self) -> None:
        """Does nothing: a row is published when its batch is committed."""

    def close(self) -> None:
        loop, client, stream = self._loop, self._client, self._stream
        self._loop = self._client = self._stream = None
        if loop is None:
            return
        try:
            if client is not None:
                loop.run(_leave(client, stream), CLOSE_TIMEOUT_S)
        finally:
            loop.close()

    @property
    def _loop_thread(self) -> EventLoopThread:
        assert self._loop is not None, "open comes first"
        return self._loop

    def _publish(self, receipts: Iterable[Receipt], stream_created: str) -> None:
        run, applied = self._loop_thread.run, self._place.applied
        cutter, held = UnitCutter(0), list[Unit]()
        lane, start = Lane.CHANGES, None
        for receipt in receipts:
            lane = receipt.lane
            if not self._place.applied.covers(receipt):
                if start is None:
                    start, cutter.part = self._place.start(lane), self._place.part_in(lane)
                written_from, blocks = split_start(receipt.body)
                if written_from != start:
                    raise WriteAgain
                for unit in (unit for block in decode_blocks(blocks) for unit in cutter.cut(block)):
                    run(self._publish_held(held, lane))
                    held = [unit]
            applied = applied.after(receipt, stream_created)
        for unit in cutter.rest():
            run(self._publish_held(held, lane))
            held = [unit]
        run(self._complete(held, applied, lane))

    async def _publish_held(self, held: list[Unit], lane: Lane) -> None:
        for unit in held:
            await self._publish_unit(unit, self._place.through(unit.last.message_id.decode(), lane, _part_of(unit)))

    async def _complete(self, held: list[Unit], applied: Applied, lane: Lane) -> None:
        """Publishes the rest of a batch, with the position after it."""
        place = self._place.at(applied, lane)
        if applied == self._place.applied:
            return
        for unit in held:
            await self._publish_unit(unit, place)
        if not held:
            await self._mark(place)
        await self._target.settled()

    async def _publish_unit(self, unit: Unit, place: PublishedPlace) -> None:
        """Publishes a unit; if messages expire, followed by the place in one that does not: the worker may be away for
        any time after this."""
        state = self._moved(place)
        await self._target.publish(unit, state.encode(self._target.sequence + unit.count))
        self._state = state
        if self._limits.max_age_s:
            await self._mark(place)

    async def _mark(self, place: PublishedPlace) -> None:
        state = self._moved(place)
        await self._target.publish_position(state.encode(self._target.sequence + 1))
        await self._target.settled()
        self._state = state

    @property
    def _place(self) -> PublishedPlace:
        return self._state.place(is_replay=self._is_replay)

    def _moved(self, place: PublishedPlace) -> PublishedState:
        return self._state.moved(place, is_replay=self._is_replay)

    @property
    def _target(self) -> TargetStream:
        assert self._stream is not None, "open comes first"
        return self._stream

    def _make_sure(self) -> None:
        if not self._is_sure:
            self._loop_thread.run(self._look_again(self._target))
            self._known = self._place
            self._is_sure = True

    async def _adopt(self, stream: TargetStream) -> None:
        """Continues from the stream's place of the worker. Does not touch a stream of another program."""
        await self._check_owner(stream)
        last = await self._last(stream)
        await self._begun(stream)
        stream.sequence = stream.confirmed = 0 if last is None else last.sequence  # what came since is refused
        if last is not None:
            state = PublishedState.decode(last.headers)
            assert state is not None, "it was looked at"
            self._state = replace(state, writer=self._state.writer)
            self._note_end(last)
        await self._let_expire(stream, last)
        self._known = self._place
        self._is_sure = True

    async def _let_expire(self, stream: TargetStream, last: StoredMessage | None) -> None:
        """Lets messages expire, if configured. ``last`` may be older than the new limit."""
        if self._limits.max_age_s and last is not None and TTL_HEADER not in last.headers:
            try:
                await self._mark(self._place)
            except StreamMoved:
                raise TransientError(f"stream {stream.name} did not end where it was expected", cause=Cause.NATS) from None
        await stream.let_expire()

    async def _last(self, stream: TargetStream) -> StoredMessage | None:
        """Returns the last message, which must be pgsluice's; None when there never was one. Raises TerminalError
        otherwise."""
        state = await stream.state()
        if state is None or not state.last_sequence:
            return None
        last = await stream.message(state.last_sequence)
        if last is None:
            raise TerminalError(
                f"stream {stream.name} has lost its last message, and with it the position of worker '{self._worker}'",
                f"restore it; or remove it, then {_begin_anew(self._worker)}",
            )
        found = _told(stream.name, last)
        if found is None or found.worker != self._worker:
            raise _foreign(stream.name, state.last_sequence, self._worker, found)
        return last

    async def _check_owner(self, stream: TargetStream) -> None:
        """Raises TerminalError when another program created the stream."""
        await stream.check_ours()

    async def _begun(self, stream: TargetStream) -> StreamState:
        return await stream.begin()

    def _note_end(self, last: StoredMessage | None) -> None:
        """Notes ``last``, the stream's last message, which is pgsluice's; None without one."""

    async def _look_again(self, stream: TargetStream) -> None:
        """Checks the stream after an attempt with unknown result. Messages under way may still be acknowledged."""
        with contextlib.suppress(StreamMoved, TransientError):
            await stream.settled()
        state = await stream.state()
        if state is None:
            raise TerminalError(f"stream {stream.name} is gone", f"restore it; or {_begin_anew(self._worker)}")
        self._check_kept(stream, state)
        uncommitted = stream.forget()
        if state.last_sequence != stream.confirmed:
            self._state = await self._state_after(stream, state.last_sequence, uncommitted)
        elif state.last_sequence:
            await self._go_back(stream, state.last_sequence)
        else:
            self._state = PublishedState(self._worker, self._state.writer)
            self._note_end(None)
        stream.sequence = stream.confirmed = state.last_sequence

    def _check_kept(self, stream: TargetStream, state: StreamState) -> None:
        """Raises SinkBehindError when the stream has lost what was stored: this process read on from there, so what it would
        publish next is not what follows. A leader that was elected a moment ago is given time to know all."""
        if state.last_sequence >= stream.confirmed:
            self._behind_since = None
            return
        now = time.monotonic()
        self._behind_since = self._behind_since or now
        fact = (
            f"stream {stream.name} ends at message {state.last_sequence}, before the last one of this worker ({stream.confirmed})"
        )
        if now - self._behind_since < BEHIND_PATIENCE_S:
            raise TransientError(fact, "it is looked at again", Cause.NATS)
        raise SinkBehindError(fact, "after a power cut or a restore, start again: the worker continues from there")

    async def _go_back(self, stream: TargetStream, sequence: int) -> None:
        """Returns to an earlier state: nothing of the last unit is stored, and the state stored before is valid,
        whichever process stored it."""
        last = await stream.message(sequence)
        found = None if last is None else _told(stream.name, last)
        if last is None or found is None:
            raise _foreign(stream.name, sequence, self._worker, found)
        self._state = replace(found, writer=self._state.writer)
        self._note_end(last)

    async def _state_after(self, stream: TargetStream, sequence: int, uncommitted: Uncommitted | None) -> PublishedState:
        """Returns the state in the last message, if it is pgsluice's. Raises TerminalError otherwise."""
        last = await stream.message(sequence)
        found = None if last is None else _told(stream.name, last)
        is_other = last is not None and uncommitted is not None and uncommitted.is_replaced_by(last)
        if last is not None and found is not None and found.writer == self._state.writer and not is_other:
            self._note_end(last)
            return found
        if last is not None and found is not None and found.worker == self._worker and not is_other:
            if found.place(is_replay=self._is_replay) == self._known:  # dead letters were replayed, or changes came meanwhile
                self._note_end(last)
                return replace(found, writer=self._state.writer)
            raise TerminalError(
                f"another process moved the position of worker '{self._worker}'",
                "give each worker of a group its own --name; when started again, the worker continues from there",
            )
        if is_other and uncommitted is not None:
            raise TerminalError(
                f"stream {stream.name} holds another message under the id {uncommitted.message_id} (sequence {sequence})",
                "find out who publishes to its subjects; nothing was published over it",
            )
        raise _foreign(stream.name, sequence, self._worker, found)


async def _leave(client: Client, stream: TargetStream | None) -> None:
    """Waits until messages under way are stored: a successor that reads before that would be refused for them."""
    if stream is not None and client.is_connected:
        with contextlib.suppress(StreamMoved, PgsluiceError, TimeoutError):  # the next writer reads the state
            await asyncio.wait_for(stream.settled(), SETTLE_TIMEOUT_S)
    await disconnect(client)


def _part_of(unit: Unit) -> int:
    """Returns the part of the transaction that is open at the end of ``unit``."""
    part = unit.last.headers.rpartition(b"Pgsluice-Part:")[2].strip()
    return int(part) if part.isdigit() else 0


def _begin_anew(worker: str) -> str:
    """Returns the remedy if the position is gone: a start alone is refused, because the group knows that there was one."""
    name = worker.rpartition("/")[2]
    return f"run 'pgsluice forget --worker {name}' and start the worker: it begins with the oldest message of its group"


def _told(stream: str, message: StoredMessage) -> PublishedState | None:
    """Returns the state in the stream's last message. Raises TerminalError for a copy of a message with one."""
    found = PublishedState.decode(message.headers)
    if found is not None and found.at and found.at != message.sequence:
        raise TerminalError(
            f"stream {stream} holds a copy of a message of worker '{found.worker}' (sequence {message.sequence})",
            "find out who publishes to its subjects; nothing was published after it",
        )
    return found


def _foreign(stream: str, sequence: int, worker: str, found: PublishedState | None) -> TerminalError:
    if found is not None:
        return TerminalError(
            f"stream {stream} belongs to worker '{found.worker}', not to '{worker}'",
            "give each worker a separate stream (nats-stream)",
        )
    return TerminalError(
        f"something else writes into stream {stream} (sequence {sequence})",
        "find out who publishes to its subjects; give the worker a separate stream and separate subjects",
    )
