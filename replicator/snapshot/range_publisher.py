"""Publishes the rows of one page range, each message once, whichever processes try it and how often.

The messages of a range are a function of its rows (``range_reader`` cuts them the same way each time), and each names
the stream sequence of the one before it on its subject. So of two publishers of one range only one can store message n,
and it is the message that the other would have stored. One that finds its place taken reads how far the range has come
and continues there. Nothing depends on JetStream's duplicate window. Nothing is ever stored after a range's last
message: a process that takes up the rest of another process's range, under another snapshot, ends it first.

One message is under way at a time, since the next one has to name its sequence; meanwhile the following ones are
prepared, up to a window.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import orjson
from nats.aio.client import Client

from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.broker.stream_error import (
    CLIENT_ERRORS,
    FULL_STREAM_REMINDER_S,
    STREAM_FULL,
    WRONG_LAST_SEQUENCE,
    is_passing_answer,
    payload_error,
    publish_error,
)
from pgsluice.shared.broker.streams import SnapshotStream
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Backoff, Pauses
from pgsluice.shared.wire.message import ID_HEADER
from pgsluice.shared.wire.snapshot_message import EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER, SnapshotHeaders

WINDOW_MESSAGES = 4
ACK_TIMEOUT_S = 5.0

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """The newest message of the range in the stream. ``number`` is 0 without one."""

    number: int
    sequence: int
    headers: SnapshotHeaders | None


@dataclass(frozen=True, slots=True)
class _Prepared:
    number: int
    headers: dict[str, str]
    data: bytes = field(repr=False)  # row values


class RangePublisher:
    """``id_prefix`` is ``<system id>/<snapshot>/<table oid>/<range>/``. To be closed in any case."""

    def __init__(
        self, client: Client, stream: SnapshotStream, subject: str, id_prefix: str, pauses: Pauses = DEFAULT_POLICY.copied_rows
    ) -> None:
        self._client = client
        self._stream = stream
        self._subject = subject
        self._id_prefix = id_prefix
        self._pauses = pauses
        self._stored = Stored(0, 0, None)
        self._window: asyncio.Queue[_Prepared] = asyncio.Queue(WINDOW_MESSAGES)
        self._sending: asyncio.Task[None] | None = None
        self._full_logged_at = 0.0

    async def resume(self) -> Stored:
        """Returns the newest stored message of the range. Waits indefinitely for a broker that does not answer."""
        self._stored = await self._look_until_answered()
        return self._stored

    async def publish(self, headers: SnapshotHeaders, data: bytes) -> None:
        """Takes the next message, when the window has room; ignores one that the stream holds already."""
        if headers.number <= self._stored.number:
            return
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        encoded = headers.encode() | {ID_HEADER: f"{self._id_prefix}{headers.number}"}
        prepared = _Prepared(headers.number, encoded, data)
        if self._window.full() or self._sending.done():
            await self._unless_failed(self._sending, self._window.put(prepared))
        else:
            self._window.put_nowait(prepared)

    async def flush(self) -> int:
        """Returns when everything taken is stored: the sequence of the newest message."""
        if self._sending is not None:
            await self._unless_failed(self._sending, self._window.join())
        return self._stored.sequence

    async def close(self) -> None:
        if self._sending is not None:
            await cancel([self._sending])

    async def _unless_failed(self, sending: asyncio.Task[None], call: Coroutine[Any, Any, None]) -> None:
        """Waits for ``call``; raises what ended the sending, if that comes first."""
        waiting = asyncio.ensure_future(call)
        try:
            await asyncio.wait({waiting, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if sending.done():
            sending.result()

    async def _send(self) -> None:
        while True:
            prepared = await self._window.get()
            await self._store(prepared)
            self._window.task_done()

    async def _store(self, prepared: _Prepared) -> None:
        """Returns when the stream holds the message."""
        backoff = Backoff(self._pauses)
        while prepared.number > self._stored.number:
            if self._stored.headers is not None and self._stored.headers.is_range_end:
                raise TransientError("the range was ended by another run", "nothing more of it is published", Cause.LOCK)
            if prepared.number > self._stored.number + 1:
                raise TransientError(f"stream {self._stream.name} lost rows of a range", "the range is copied again", Cause.NATS)
            answer = await self._request(prepared)
            if answer is None:
                self._stored = await self._look_until_answered()
                continue
            error = answer.get("error")
            if error is None:
                self._stored = Stored(prepared.number, answer["seq"], None)
            elif error.get("err_code") in WRONG_LAST_SEQUENCE:
                self._stored = await self._look_until_answered()
            elif error.get("err_code") in STREAM_FULL or is_passing_answer(error):
                self._log_waiting(error)
                await asyncio.sleep(backoff.next_pause_s())
            else:
                raise publish_error(self._stream.name, error, "the copy continues from there at the next start")

    async def _request(self, prepared: _Prepared) -> dict[str, Any] | None:
        """Returns JetStream's answer; None when there was none, and the message may be stored or not."""
        headers = prepared.headers | {EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER: str(self._stored.sequence)}
        try:
            answer = await self._client.request(self._subject, prepared.data, timeout=ACK_TIMEOUT_S, headers=headers)
        except nats.errors.MaxPayloadError:
            raise payload_error(f"a message for stream {self._stream.name}") from None
        except CLIENT_ERRORS as error:
            if self._client.is_closed:
                raise TransientError("the connection to NATS is closed", "it is opened again", Cause.NATS) from None
            log.warning("JetStream did not acknowledge rows; reading the end of the stream", reason=type(error).__name__)
            return None
        content: dict[str, Any] = orjson.loads(answer.data)
        return content

    async def _look_until_answered(self) -> Stored:
        backoff = Backoff(self._pauses)
        while True:
            try:
                return await self._look()
            except TransientError as error:
                if self._client.is_closed:
                    raise
                log.warning("waiting for the broker", reason=str(error))
            await asyncio.sleep(backoff.next_pause_s())

    async def _look(self) -> Stored:
        message = await self._stream.last_message_on(self._subject)
        if message is None:
            return Stored(0, 0, None)
        headers = SnapshotHeaders.decode(message.headers)
        return Stored(headers.number, message.sequence, headers)

    def _log_waiting(self, error: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self._full_logged_at >= FULL_STREAM_REMINDER_S:
            self._full_logged_at = now
            is_full = error.get("err_code") in STREAM_FULL
            log.warning(
                "the stream takes no rows now, waiting",
                stream=self._stream.name,
                reason=error.get("description"),
                **({"remedy": "start the workers or raise stream-max-bytes"} if is_full else {}),
            )
