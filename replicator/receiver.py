"""The receive loop, from the walsender's socket through the assembler to the publisher, and the status updates in parallel.

Received data goes to the assembler in pieces, which takes runs of changes out of them; the loop handles all other
messages. It never stops for anything but the publisher's full window, and then the server waits in TCP while
``Feedback`` keeps the connection alive.

A walsender that catches up sends each change for itself. Waking up for each would cost both sides more than the change,
so while the server keeps sending the loop naps instead of waiting, and finds many changes when it reads again.
Meanwhile the receive buffer fills up (``WalSender.limit_receive_buffer``), and a sender that meets a closed window lets
changes gather. Large changes would fill the buffers long before the end of a nap, and so would any in a Unix socket;
waking up for them is cheap in comparison.

Standby status updates have a separate task, so that a slow broker never makes the server believe that its client is
gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from pgsluice.replicator.assembler import BEGIN, LOGICAL_MESSAGE, RELATION, Assembler, Message
from pgsluice.replicator.definitions.source_definitions import SourceDefinitions
from pgsluice.replicator.progress import Progress, PublishedCounts
from pgsluice.replicator.publisher import Publisher
from pgsluice.replicator.source.copy_both import end_error
from pgsluice.replicator.source.copy_data import (
    COPY_DATA,
    FRAME_OFFSET,
    KIND_OFFSET,
    PASSED_OVER,
    XLOG_DATA,
    Keepalive,
    message_end,
)
from pgsluice.replicator.source.walsender import WalSender
from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.decoder import begin_lsn, begin_transaction
from pgsluice.shared.pgoutput.messages import Relation
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Backoff, RetryNews
from pgsluice.shared.wire.position import LSN

BYTES_PER_TURN = 256 * 1024  # received, then the event loop's other tasks have a turn
BUSY_WAIT_S = 0.0005  # a wait that ends sooner means that the server is sending all the time
NAP_S = 0.008
SMALL_READ_BYTES = 48 * 1024
"""Smaller reads (relative to ``WalSender.limit_receive_buffer``) mean that the loop has caught up with the server, and
reading on would take its changes one by one."""
SMALL_CHANGE_BYTES = 2048  # on average, in the message before; at 3 kB naps gain nothing, at 6 kB they divide the rate by four
MESSAGE_AGE_S = 0.010  # how long a busy server's commits may gather in one message

MAX_INTERVAL_S = 10.0  # between two status updates
TICK_S = 0.5  # how late a newly confirmed LSN may reach the server
MIN_SILENCE_S = 30.0
FINISH_PATIENCE_S = 2.0

log = telemetry.logger(__name__)


class StreamReceiver:
    """``until``: the LSN at which to stop; every transaction whose commit record begins before it is published. ``admit`` is
    called with the OID of each relation that the server is about to send changes of."""

    def __init__(
        self,
        walsender: WalSender,
        definitions: SourceDefinitions,
        assembler: Assembler,
        publisher: Publisher,
        progress: Progress,
        counts: PublishedCounts,
        pulse: Pulse,
        until: LSN | None,
        admit: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._walsender = walsender
        self._definitions = definitions
        self._wanted = definitions.wanted
        self._assembler = assembler
        self._publisher = publisher
        self._progress = progress
        self._counts = counts
        self._pulse = pulse
        self._until = until
        self._admit = admit
        self._stopped = False
        self._received_bytes = 0
        self._received_at_wait = 0
        self._is_busy = False
        self._are_changes_small = False
        self._published_at = 0.0
        self._waiting_since: float | None = None
        self._names: dict[int, str] = {}

    @property
    def received(self) -> LSN:
        return max(self._progress.received, self._assembler.flushed)

    def silence_s(self) -> float:
        """Returns seconds that the loop has been waiting for the server; 0 while it is busy itself."""
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since

    def finish_at(self, until: LSN) -> None:
        """Makes ``run`` return there."""
        self._until = until

    def stop(self) -> None:
        """Makes ``run`` return soon; a current transaction stays unfinished and is received again by the next session."""
        self._stopped = True
        self._walsender.wake()

    async def run(self) -> None:
        """Returns after ``stop`` or at ``until``; everything complete is handed to the publisher then. Raises when the stream
        ends or breaks."""
        stream = self._walsender.stream
        received_at_turn = 0
        while not self._stopped:
            data = stream.receive()
            if data is None:
                await self._wait()
                continue
            if not data:  # of a message that is not whole, which may be very long
                await asyncio.sleep(0)
                continue
            self._received_bytes += len(data)
            if self._received_bytes - received_at_turn >= BYTES_PER_TURN:
                received_at_turn = self._received_bytes
                await asyncio.sleep(0)
            taken = await self._take(data)
            if taken < len(data) and not self._stopped:
                stream.keep(data[taken:])
            if len(data) < SMALL_READ_BYTES and self._is_busy and self._are_changes_small:
                await self._wait()
        await self._publish_drained()

    async def _take(self, data: bytes) -> int:
        """Takes the messages that are whole; returns where the first one begins that is not, or at which to stop."""
        add_run, add, position = self._assembler.add_run, self._assembler.add, 0
        while not self._stopped:
            position = add_run(data, position, self._next_stop())
            end = message_end(data, position)
            if end < 0:
                break
            if data[position] != COPY_DATA:
                if data[position] not in PASSED_OVER:
                    raise end_error(data[position:end])
            elif end > position + FRAME_OFFSET and data[position + KIND_OFFSET] == XLOG_DATA:
                kind = data[position + FRAME_OFFSET]
                if kind == LOGICAL_MESSAGE and not self._wanted.has(data, position):
                    position = end
                    continue
                frame = data[position + FRAME_OFFSET : end]
                if kind == RELATION:
                    message = await self._add_relation(frame)
                elif kind == LOGICAL_MESSAGE:
                    message = await self._add_logical_message(frame)
                elif kind == BEGIN and self._until is not None and begin_lsn(frame) >= self._until:
                    await self._note_reached(self._until)
                    break
                elif kind == BEGIN:
                    await self._complete_tables(frame)
                    message = add(frame)
                else:
                    message = add(frame)
                if message is not None:
                    await self._publish(message)
            else:
                await self._receive_keepalive(Keepalive.decode(data[position + KIND_OFFSET : end]))
            position = end
        return position

    async def _wait(self) -> None:
        """Returns when there may be something to read."""
        naps = self._is_busy and self._are_changes_small and self._received_bytes != self._received_at_wait
        self._received_at_wait = self._received_bytes
        if not naps or time.monotonic() - self._published_at > MESSAGE_AGE_S:
            await self._publish_drained()
        if self._stopped:
            return
        self._waiting_since = started = time.monotonic()
        if naps:
            await asyncio.sleep(NAP_S)
        else:
            await self._walsender.wait_readable()
            self._is_busy = time.monotonic() - started < BUSY_WAIT_S and self._walsender.has_room
        self._waiting_since = None

    async def _add_relation(self, frame: bytes) -> Message | None:
        relation = decode_message(frame)
        assert isinstance(relation, Relation)
        self._note_name(relation)
        if self._admit is not None:
            await self._admit(relation.oid)
        position, xid = self._assembler.next_position, self._assembler.xid
        return self._assembler.add_relation(frame, await self._definitions.describe(relation, position, xid))

    def _next_stop(self) -> LSN | None:
        """Returns the commit LSN at or after which the loop stops before the next Begin."""
        stops = [lsn for lsn in (self._until, self._definitions.counts_from) if lsn is not None]
        return min(stops, default=None)

    async def _complete_tables(self, begin: bytes) -> None:
        commit_lsn, counts_from = begin_lsn(begin), self._definitions.counts_from
        if counts_from is None or commit_lsn < counts_from:
            return
        for table in await self._definitions.complete(begin_transaction(begin)[0], commit_lsn):
            message = self._assembler.complete(table)
            if message is not None:
                await self._publish(message)

    async def _add_logical_message(self, frame: bytes) -> Message | None:
        taken = await self._definitions.take(frame, self._assembler.next_position, self._assembler.committed_at)
        if taken is None:
            return None
        if taken.frame is None:
            return self._assembler.add_forged()
        return self._assembler.add_definition(taken.frame, supersedes=taken.supersedes)

    def _note_name(self, relation: Relation) -> None:
        """A table is published by its OID, so one that is renamed stays, under its new name from here on."""
        name = f"{relation.schema}.{relation.name}"
        before = self._names.setdefault(relation.oid, name)
        if before != name:
            self._names[relation.oid] = name
            log.warning("a published table was renamed; name it so in tables, rules and routes", was=before, now=name)

    async def _receive_keepalive(self, keepalive: Keepalive) -> None:
        self._progress.received = max(self._progress.received, keepalive.wal_end)
        if not self._assembler.in_transaction:
            await self._note_reached(keepalive.wal_end)
        if keepalive.reply_requested:
            self._walsender.send_status(self.received, self._progress.confirmed, reply=False)
        if not self._publisher.is_waiting:
            self._pulse.progressed(idle=True)

    async def _note_reached(self, lsn: LSN) -> None:
        """Notes that the server has sent everything that commits before ``lsn``, and no transaction is open."""
        self._assembler.check_reached(lsn)
        await self._publish_drained()
        self._progress.caught_up(lsn)
        self._counts.reached_at, self._counts.is_at_end = time.time(), True
        if self._until is not None and lsn >= self._until:
            self._stopped = True

    async def _publish_drained(self) -> None:
        message = self._assembler.drained()
        if message is not None:
            await self._publish(message)

    async def _publish(self, message: Message) -> None:
        self._published_at = time.monotonic()
        self._are_changes_small = len(message.body) < SMALL_CHANGE_BYTES * max(1, message.changes)
        await self._flush_definitions()
        sequence = await self._publisher.publish(message)
        self._progress.published(sequence, message.flushed)
        self._counts.messages += 1
        self._counts.changes += message.changes
        self._counts.body_bytes += len(message.body)
        self._counts.committed_at, self._counts.is_at_end = message.committed_at, False

    async def _flush_definitions(self) -> None:
        """Stores definitions. While NATS does not answer it waits, as the publisher does, and keeps the connection to the
        source."""
        backoff, news = Backoff(DEFAULT_POLICY.nats), RetryNews()
        while True:
            try:
                return await self._definitions.flush(self._progress.confirmed)
            except TransientError as error:
                if error.cause is not Cause.NATS or self._stopped:
                    raise
                if news.is_due(error):
                    log.warning("definitions cannot be stored yet, waiting for NATS", reason=error)
                pause_s = backoff.next_pause_s()
                self._pulse.idle = False
                self._pulse.waits(error, pause_s)
                await asyncio.sleep(pause_s)


def status_interval_s(wal_sender_timeout_ms: int) -> float:
    """Returns a third of the server's patience; 0 means that it has no limit."""
    return min(MAX_INTERVAL_S, wal_sender_timeout_ms / 3000) if wal_sender_timeout_ms else MAX_INTERVAL_S


class Feedback:
    """Sends a status at least every ``interval_s`` and soon after the confirmed LSN moved.

    Each regular status asks for a keepalive, so a healthy server is never silent for long; the connection to a silent
    one is closed.
    """

    def __init__(self, walsender: WalSender, progress: Progress, receiver: StreamReceiver, interval_s: float) -> None:
        self._walsender = walsender
        self._progress = progress
        self._receiver = receiver
        self._interval_s = interval_s
        self._silence_limit_s = max(MIN_SILENCE_S, 3 * interval_s)
        self._sent_at = 0.0
        self._sent_lsn = 0
        self._has_finished = False

    async def run(self) -> None:
        """Ends only by raising: TransientError when the connection is broken or the server is silent."""
        while True:
            if not self._has_finished:
                self._tick()
            await asyncio.sleep(min(TICK_S, self._interval_s))

    def send(self) -> None:
        """Sends the confirmed LSN to the server now."""
        self._sent_at, self._sent_lsn = time.monotonic(), self._progress.confirmed
        self._walsender.send_status(self._receiver.received, self._sent_lsn, reply=True)

    async def finish(self) -> None:
        """Sends the confirmed LSN for the last time, and ends the stream."""
        self.send()
        self._has_finished = True  # the server ends the session of a client that sends more
        await self._walsender.finish(FINISH_PATIENCE_S)

    def _tick(self) -> None:
        is_due = time.monotonic() - self._sent_at >= self._interval_s
        if is_due or self._progress.confirmed > self._sent_lsn:
            self.send()
        if self._receiver.silence_s() > self._silence_limit_s:
            raise TransientError(
                f"the source has been silent for {self._silence_limit_s:g} s",
                "the connection is closed and opened again",
                Cause.SOURCE,
            )
