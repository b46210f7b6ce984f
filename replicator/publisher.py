"""Pipelined publishing into the change stream, in order, each message once.

Messages wait in a window, bounded in number and bytes, until JetStream acknowledged them. A single task sends them in
order without waiting for each other's acknowledgement; at the first failure it stops and, after a pause, sends the
whole window again: the same bytes, ids and expected sequences. Two things keep a message from being stored twice or out
of order:

- JetStream drops a message whose id it has seen (within the stream's duplicate window) and acknowledges it again.
- Every message names the stream sequence it expects before it; one that is sent while its predecessor is not yet
  acknowledged also names the predecessor's id. So of two publishers that meet in one stream only one can continue, even
  when the other's last messages are still under way: a message is stored only directly after its own predecessor.

When JetStream reports that the stream's end is not as expected, the stream is read: messages there under this
publisher's ids are acknowledged; anything else ends the session, so that the next one starts from what the stream
holds.

A body that does not fit one NATS message is published as chunks, one after the other; only the last one is the message,
and the other ones carry the ``Pgsluice-Flushed``, ``-Settled`` and ``-Ddl`` of the message before. A session that ends
among them leaves an unfinished group in the stream: the next one publishes the body again from its first chunk, and
readers skip chunks that are followed by a first chunk or a whole message before their own last one. A chunk's id names
the sequence of its group's first chunk, so that it differs from the same chunk of an unfinished group.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from pgsluice.replicator.assembler import Message
from pgsluice.replicator.progress import PublishedCounts
from pgsluice.replicator.resume import StreamEnd
from pgsluice.shared import telemetry
from pgsluice.shared.broker.stream_error import (
    CLIENT_ERRORS,
    FULL_STREAM_REMINDER_S,
    STREAM_FULL,
    WRONG_LAST_SEQUENCE,
    is_passing,
    is_passing_answer,
    publish_error,
)
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.errors import Cause, PgsluiceError, TerminalError, TransientError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Backoff, Pauses
from pgsluice.shared.wire.message import EXPECTED_LAST_SEQUENCE_HEADER, ID_HEADER, MessageHeaders, counted_bytes, cut

WINDOW_MESSAGES = 32
WINDOW_BYTES = 8 * 1024 * 1024
HEADER_BYTES = 8 * 1024  # room for headers within max_payload; pgsluice's are below 1 KiB
ACK_TIMEOUT_S = 5.0

_EXPECTED_LAST_ID_HEADER = "Nats-Expected-Last-Msg-Id"
_FULL = "the stream is full"
_CHECK_INTERVAL_S = 0.25
_COUNT_INTERVAL_S = 1.0
RING_INTERVAL_S = 0.005

log = telemetry.logger(__name__)


@dataclass(slots=True)
class _Outstanding:
    """One NATS message without acknowledgement. ``sequence`` is where it has to be stored; ``sent_at`` is 0 before it is sent."""

    sequence: int
    message_id: str
    headers: dict[str, str]
    data: bytes = field(repr=False)
    sent_at: float = 0.0


class Publisher:
    """``id_prefix`` is ``<system id>/<slot>/``. ``acknowledged`` is called with a sequence when the stream holds all up
    to it. ``compress`` makes a body smaller, or returns None to send it uncompressed.

    ``run`` must be running for anything to be sent. It ends only by raising.
    """

    def __init__(
        self,
        client: Client,
        stream: ChangeStream,
        id_prefix: str,
        end: StreamEnd,
        acknowledged: Callable[[int], None],
        pulse: Pulse,
        counts: PublishedCounts,
        compress: Callable[[bytes], bytes | None] | None = None,
        pauses: Pauses = DEFAULT_POLICY.nats,
    ) -> None:
        self._client = client
        self._stream = stream
        self._id_prefix = id_prefix
        self._end = end
        self._acknowledged = acknowledged
        self._pulse = pulse
        self._counts = counts
        self._is_full = False
        self._compress = compress
        self._chunk_bytes = client.max_payload - HEADER_BYTES
        self._inbox = client.new_inbox()
        self._window: deque[_Outstanding] = deque()
        self._window_bytes = 0
        self._unsent = 0  # index in the window
        self._attempt = 0
        self._backoff = Backoff(pauses)
        self._failure: str | None = None
        self._wrong_sequence = False
        self._fatal: PgsluiceError | None = None
        self._full_logged_at = 0.0
        self._reconnects = client.stats["reconnects"]
        self._rung_at = 0.0
        self._work = asyncio.Event()
        self._progressed = asyncio.Event()

    @property
    def end(self) -> StreamEnd:
        """The stream's last message once everything handed over is stored."""
        return self._end

    @property
    def is_waiting(self) -> bool:
        """Returns whether something that was handed over is not acknowledged yet."""
        return bool(self._window)

    async def publish(self, message: Message) -> int:
        """Takes ``message`` as the next one, when the window has room for it, and returns the sequence it will be stored at."""
        for headers, data in self._pieces(message):
            while self._window and (len(self._window) >= WINDOW_MESSAGES or self._window_bytes + len(data) > WINDOW_BYTES):
                await self._wait_for_room()
            self._hand_over(headers, data, message)
        return self._end.sequence

    async def flush(self) -> None:
        """Returns when everything handed over is acknowledged."""
        while self._window:
            await self._progress()

    async def run(self) -> None:
        """Sends, watches for acknowledgements, sends again. Raises TransientError when the stream continued without
        this publisher or is gone, TerminalError when another client writes into it or JetStream will never take a
        message."""
        subscription = await self._client.subscribe(f"{self._inbox}.*.*", cb=self._receive_answer)
        try:
            while True:
                await self._send_unsent()
                await self._wait_for_work()
                if self._fatal is not None:
                    raise self._fatal
                if self._failure is not None:
                    await self._recover()
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    async def _wait_for_room(self) -> None:
        """Returns soon, with room or without, so that time is counted while it passes."""
        began_at = time.monotonic()
        self._progressed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COUNT_INTERVAL_S):
                await self._progressed.wait()
        self._counts.note_blocked(time.monotonic() - began_at, is_full=self._is_full)

    async def _progress(self) -> None:
        self._progressed.clear()
        await self._progressed.wait()

    def _pieces(self, message: Message) -> Iterator[tuple[MessageHeaders, bytes]]:
        """Yields the message's headers and data, chunk by chunk."""
        compressed = None if self._compress is None else self._compress(message.body)
        size = None if compressed is None else len(message.body)
        for chunk, data in cut(message.body if compressed is None else compressed, self._chunk_bytes):
            is_last, end = chunk.is_last, self._end
            yield (
                MessageHeaders(
                    first=message.first,
                    last=message.last,
                    flushed=message.flushed if is_last else end.flushed,
                    settled=end.sequence + 1 if is_last and message.settled else end.settled,
                    total_bytes=end.total_bytes + counted_bytes(data, chunk, size),
                    chunk=chunk,
                    anchor=message.anchor,
                    after=end.anchor,
                    size=size,
                    ddl=end.sequence + 1 if is_last and message.is_definition else end.ddl,
                    counts_definitions=message.counts_definitions,
                ),
                data,
            )

    def _hand_over(self, headers: MessageHeaders, data: bytes, message: Message) -> None:
        sequence = self._end.sequence + 1
        message_id = f"{self._id_prefix}{message.first}-{message.last}"
        if headers.chunk.count > 1:
            message_id += f"/{headers.chunk.index}@{sequence - headers.chunk.index + 1}"
        encoded = headers.encode() | {ID_HEADER: message_id, EXPECTED_LAST_SEQUENCE_HEADER: str(sequence - 1)}
        self._pulse.idle = False
        self._window.append(_Outstanding(sequence, message_id, encoded, data))
        self._window_bytes += len(data)
        anchor = headers.anchor if headers.chunk.is_last else self._end.anchor
        self._end = StreamEnd(sequence, headers.settled, headers.total_bytes, headers.flushed, anchor, headers.ddl)
        self._work.set()

    async def _send_unsent(self) -> None:
        while self._failure is None and self._can_send:
            outstanding = self._window[self._unsent]
            headers = outstanding.headers
            if self._unsent > 0:
                headers = headers | {_EXPECTED_LAST_ID_HEADER: self._window[self._unsent - 1].message_id}
            self._unsent += 1
            outstanding.sent_at = time.monotonic()
            reply = f"{self._inbox}.{self._attempt}.{outstanding.sequence}"
            try:
                await self._client.publish(self._stream.subject, outstanding.data, reply=reply, headers=headers)
            except CLIENT_ERRORS as error:
                if not is_passing(error):
                    raise
                self._fail(f"cannot send to NATS ({type(error).__name__})")

    @property
    def _can_send(self) -> bool:
        return self._unsent < len(self._window) and self._client.is_connected

    async def _wait_for_work(self) -> None:
        """Returns when there is something to send, something failed, or an acknowledgement is overdue."""
        while (
            self._failure is None and self._fatal is None and (self._unsent == len(self._window) or not self._client.is_connected)
        ):
            self._work.clear()
            try:
                async with asyncio.timeout(_CHECK_INTERVAL_S):
                    await self._work.wait()
            except TimeoutError:
                self._check_overdue()

    def _check_overdue(self) -> None:
        if self._client.is_closed:
            self._fatal = TransientError("the connection to NATS is closed", "it is opened again", Cause.NATS)
        reconnects = self._client.stats["reconnects"]
        if reconnects != self._reconnects:
            self._reconnects = reconnects
            if self._unsent:
                self._fail("the connection to NATS broke")
        elif self._unsent and time.monotonic() - self._window[0].sent_at > ACK_TIMEOUT_S and self._client.is_connected:
            self._fail(f"JetStream did not acknowledge within {ACK_TIMEOUT_S:g} s")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._work.set()

    async def _recover(self) -> None:
        """Recovers after a failure: acknowledges messages that the stream already holds, and sends the rest again."""
        pause_s = self._backoff.next_pause_s()
        log.warning("publishing interrupted", reason=self._failure, pause_s=round(pause_s, 3))
        cause = Cause.STREAM_FULL if self._failure == _FULL else Cause.NATS
        self._pulse.waits(TransientError(f"publishing is interrupted: {self._failure}", cause=cause), pause_s)
        await asyncio.sleep(pause_s)
        await self._round_trip()
        if self._wrong_sequence:
            await self._compare_with_stream()
        self._attempt += 1
        self._unsent = 0
        self._failure = None
        self._wrong_sequence = False

    async def _round_trip(self) -> None:
        """Returns when the server has read everything that was sent on this connection: before that, sending again would only
        pile up copies in front of a server that is slow or stopped."""
        while True:
            try:
                await self._client.flush(timeout=int(ACK_TIMEOUT_S))
                return
            except CLIENT_ERRORS as error:
                if self._client.is_closed:
                    raise TransientError("the connection to NATS is closed", "it is opened again", Cause.NATS) from None
                log.warning("NATS does not answer, waiting", reason=type(error).__name__)
                await asyncio.sleep(_CHECK_INTERVAL_S)

    async def _compare_with_stream(self) -> None:
        """Acknowledges messages that the stream holds under this publisher's ids; raises when it holds anything else in
        their place."""
        while self._window:
            expected = self._window[0]
            stored = await self._stream.message(expected.sequence)
            if stored is None:
                break
            message_id = stored.headers.get(ID_HEADER, "")
            if message_id != expected.message_id:
                raise _foreign_message(self._stream.name, expected.sequence, message_id, self._id_prefix)
            if stored.data != expected.data:
                raise _another_payload(self._stream.name, expected.sequence, message_id)
            self._acknowledge(expected.sequence)
        state = await self._stream.state()
        last_acknowledged = self._window[0].sequence - 1 if self._window else self._end.sequence
        if state is None or state.last_sequence != last_acknowledged:
            raise TransientError(
                f"stream {self._stream.name} does not end at the last acknowledged message",
                "publishing starts again from the end of the stream",
                Cause.NATS,
            )

    async def _receive_answer(self, answer: Msg) -> None:
        """Receives JetStream's acknowledgement or error about one message of one attempt."""
        attempt, sequence = (int(token) for token in answer.subject.rsplit(".", 2)[1:])
        if answer.headers and answer.headers.get("Status") == "503":
            if attempt == self._attempt:
                self._fail("no stream takes the messages")
            return
        content = orjson.loads(answer.data)
        if (error := content.get("error")) is not None:
            if attempt == self._attempt and self._failure is None:
                self._receive_error(error)
        elif content.get("duplicate") and self._window and sequence >= self._window[0].sequence:
            self._wrong_sequence = True  # what is stored under that id is looked at
            self._fail("JetStream has a message with that id")
        elif content["seq"] != sequence:
            self._fatal = TransientError(
                f"stream {self._stream.name} has a message of this group at sequence {content['seq']} instead of {sequence}",
                "publishing starts again from the end of the stream",
                Cause.NATS,
            )
            self._work.set()
        else:
            self._acknowledge(sequence)
            await self._ring()

    async def _ring(self) -> None:
        """Wakes workers that wait for the stream to grow. They also poll, because a message may get lost."""
        now = time.monotonic()
        if not self._window or now - self._rung_at >= RING_INTERVAL_S:
            self._rung_at = now
            with contextlib.suppress(*CLIENT_ERRORS):
                await self._client.publish(self._stream.bell)

    def _receive_error(self, error: Mapping[str, Any]) -> None:
        code, text = error.get("err_code"), error.get("description", "")
        if code in WRONG_LAST_SEQUENCE:
            self._wrong_sequence = True
            self._fail("the stream's end is not the expected one")
        elif code in STREAM_FULL:
            self._log_full_stream(text)
            self._is_full = True
            self._fail(_FULL)
        elif is_passing_answer(error):
            self._fail(f"JetStream refused a message: {text} (error {code})")
        else:
            self._fatal = publish_error(self._stream.name, error, "nothing is lost, the source retains WAL")
            self._work.set()

    def _log_full_stream(self, text: str) -> None:
        now = time.monotonic()
        if now - self._full_logged_at >= FULL_STREAM_REMINDER_S:
            self._full_logged_at = now
            log.error(
                "stream is full, waiting while the source retains WAL: start the workers or raise stream-max-bytes",
                stream=self._stream.name,
                answer=text,
            )

    def _acknowledge(self, sequence: int) -> None:
        """Notes that the stream holds ``sequence``, and with it, by the fence, everything before."""
        acknowledged, now = False, time.monotonic()
        while self._window and self._window[0].sequence <= sequence:
            outstanding = self._window.popleft()
            self._window_bytes -= len(outstanding.data)
            self._counts.acknowledged_s.observe(now - (outstanding.sent_at or now))
            self._unsent = max(0, self._unsent - 1)
            acknowledged = True
        if acknowledged:
            self._is_full = False
            self._backoff.note_success()
            self._acknowledged(sequence)
            self._pulse.progressed(idle=not self._window)
            self._progressed.set()


def _foreign_message(stream: str, sequence: int, message_id: str, id_prefix: str) -> PgsluiceError:
    if message_id.startswith(id_prefix):
        return TransientError(
            f"another replicator of this group wrote sequence {sequence} of stream {stream}",
            "publishing starts again from the end of the stream; run only one replicator for a group",
            Cause.NATS,
        )
    return TerminalError(
        f"something else writes into stream {stream} (sequence {sequence})",
        "find out who publishes to its subject, then run 'pgsluice drop' and start again",
    )


def _another_payload(stream: str, sequence: int, message_id: str) -> PgsluiceError:
    return TerminalError(
        f"sequence {sequence} of stream {stream} has the id {message_id} of one of this group's messages, and other content",
        "find out who publishes to its subject, then run 'pgsluice drop' and start again",
    )
