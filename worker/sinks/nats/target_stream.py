"""The target stream: created, checked, and extended by units that are stored as a whole or not at all.

Every unit names the sequence that it must follow (``Nats-Expected-Last-Sequence``), so a process that was replaced is
refused. Its messages travel while the unit before is not acknowledged yet; the message that commits it does not. So the
next unit is never stored when the one before was not, also with other writers.

``Nats-Msg-Id`` is a message's id for readers. JetStream's own memory of ids is kept short: what keeps a message from
being stored twice are the expected sequence and the state that the stream holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from pgsluice.shared.broker.connection import send_framed
from pgsluice.shared.broker.stream_error import (
    CLIENT_ERRORS,
    STREAM_FULL,
    WRONG_LAST_SEQUENCE,
    is_passing,
    is_passing_answer,
    publish_error,
)
from pgsluice.shared.broker.streams import CREATED_METADATA, StoredMessage, Stream, StreamState, stream_configuration
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.wire.message import ID_HEADER
from pgsluice.worker.sinks.nats.atomic_unit import Unit, frame
from pgsluice.worker.sinks.nats.outgoing import Outgoing
from pgsluice.worker.sinks.nats.published_state import STATE_HEADER

ATOMIC_SERVER_VERSION = (2, 12)
ACK_TIMEOUT_S = 8.0  # below the 10 s after which nats-server drops a batch that is not committed
DUPLICATE_WINDOW_S = 1.0
TTL_HEADER = "Nats-TTL"
DUPLICATE_IN_BATCH = 10201  # nats-server, server/errors.json
_NO_ROOM_REMEDY = "make room: raise nats-stream-max-bytes, or give nats-stream-max-age; nothing is lost meanwhile"


class StreamMoved(Exception):  # noqa: N818  not a failure yet: whoever catches it looks who has moved it
    """The stream's end has changed since it was read. Never leaves the sink."""


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """``max_age_s`` is 0 for a stream without expiry."""

    stream: StreamSettings
    max_age_s: float


class Uncommitted(NamedTuple):
    """The last message of a unit that is not acknowledged, or a batch of one. ``body`` is its digest."""

    sequence: int
    message_id: str
    body: bytes

    def is_replaced_by(self, stored: StoredMessage) -> bool:
        """Returns whether the stored one has its id, and is another."""
        return stored.headers.get(ID_HEADER) == self.message_id and _digest(stored.data) != self.body


class TargetStream(Stream):
    """``subjects`` are all that the stream takes; on ``position_subject``, one of them, is the position alone."""

    def __init__(self, client: Client, name: str, subjects: list[str], position_subject: str, limits: TargetLimits) -> None:
        super().__init__(client, name, subjects[0])
        self._all_subjects = subjects
        self._position_subject = position_subject
        self._limits = limits
        self._inbox = client.new_inbox()
        self._answer: asyncio.Future[Mapping[str, Any]] | None = None
        self._uncommitted: Uncommitted | None = None
        self.sequence = 0
        """Sequence of the last message, once all sent messages are stored."""
        self.confirmed = 0
        """Sequence of the last message that is known to be stored."""
        self._attempt = 0
        self._max_age_s = 0.0
        self._allows_ttl = False

    def configuration(self, settings: StreamSettings) -> dict[str, Any]:
        chosen = stream_configuration(self.name, self._all_subjects, settings)
        return chosen | {
            "allow_atomic": True,
            "allow_msg_ttl": self._allows_ttl,
            "allow_rollup_hdrs": True,
            "max_age": self._max_age_s,
            "duplicate_window": DUPLICATE_WINDOW_S,
        }

    async def check_ours(self) -> None:
        """Raises TerminalError when another program created the stream."""
        found = await self._found()
        if found is not None and CREATED_METADATA not in (found.metadata or {}):
            raise TerminalError(
                f"stream {self.name} exists, and pgsluice did not make it", "give another nats-stream: the worker makes it"
            )

    async def begin(self, *, is_atomic: bool = True) -> StreamState:
        """Creates the stream, or brings its limits to the settings; messages expire as they did until ``let_expire``.
        Raises TerminalError when the server is too old.

        Messages with their own time to live are allowed where they are needed, because that costs the server a tenth of
        what it does for each message, and JetStream cannot revoke the permission.
        """
        version = self._client.connected_server_version
        if is_atomic and (version.major, version.minor) < ATOMIC_SERVER_VERSION:
            raise TerminalError(
                f"NATS server {version.major}.{version.minor}.{version.patch} has no atomic batches",
                "worker nats needs NATS server 2.12 or later; upgrade it",
            )
        found = await self._found()
        self._max_age_s = 0.0 if found is None else found.max_age or 0.0
        self._allows_ttl = bool(self._limits.max_age_s or (found is not None and found.allow_msg_ttl))
        state = await self.ensure(self._limits.stream)
        self.sequence = self.confirmed = state.last_sequence
        await self._client.subscribe(f"{self._inbox}.*", cb=self._receive_answer)
        return state

    async def let_expire(self) -> None:
        """Lets messages expire as configured from now on; the position is in one that does not."""
        self._max_age_s = self._limits.max_age_s
        await self.ensure(self._limits.stream)

    async def _found(self) -> StreamConfig | None:
        return None if await self.state() is None else await self.configuration_of(self.name)

    async def publish(self, unit: Unit, state: bytes) -> None:
        """Returns when it is under way and the one before is stored. Raises as ``settled``."""
        await self._send(unit.opening(self.sequence))
        await self.settled()
        await self._commit(unit.closing(self.sequence, _state_line(state), self._expect_answer()), unit.count, unit.last)

    async def publish_position(self, state: bytes) -> None:
        """Publishes the position without a change; it takes the place of the one before on its subject, and does not
        expire."""
        message_id = f"position:{uuid.uuid4().hex}"
        headers = b"Nats-Rollup:sub\r\n" + (b"Nats-TTL:never\r\n" if self._allows_ttl else b"")
        await self.publish_alone(Outgoing(self._position_subject.encode(), message_id.encode(), headers, b"", 0), state)

    async def publish_alone(self, message: Outgoing, state: bytes) -> None:
        """Publishes a single message as a unit, without a batch. Raises as ``publish``."""
        await self.settled()
        headers = b"Nats-Expected-Last-Sequence:%d\r\n" % self.sequence + _state_line(state)
        await self._commit(frame(message, headers, self._expect_answer()), 1, message)

    async def settled(self) -> None:
        """Returns when all that was handed over is stored. Raises StreamMoved when another message is in its place or has its id;
        TransientError when it is not known what became of it; TerminalError when JetStream will never take it."""
        if self._answer is None:
            return
        try:
            content = await asyncio.wait_for(self._answer, ACK_TIMEOUT_S)
        except TimeoutError:
            raise self._unavailable("no acknowledgement") from None
        finally:
            self._answer = None
        error = content.get("error")
        if error is None:
            if content["seq"] != self.sequence:
                raise StreamMoved
            self._uncommitted, self.confirmed = None, self.sequence
            return
        code, text = error.get("err_code"), error.get("description", "")
        if code in WRONG_LAST_SEQUENCE or code == DUPLICATE_IN_BATCH:
            raise StreamMoved
        if code in STREAM_FULL:
            raise TransientError(f"stream {self.name} is full ({text})", _NO_ROOM_REMEDY, Cause.STREAM_FULL)
        if is_passing_answer(error) or content.get("Status"):
            raise TransientError(f"JetStream refused a batch for stream {self.name}: {text} (error {code})", cause=Cause.NATS)
        raise publish_error(self.name, error, "when started again, the worker continues with the same changes")

    def forget(self) -> Uncommitted | None:
        """Returns the last message of the unit that is not known to be stored, and forgets it; call it before reading
        the stream."""
        self._answer = None
        self._attempt += 1
        uncommitted, self._uncommitted = self._uncommitted, None
        return uncommitted

    def _expect_answer(self) -> bytes:
        self._attempt += 1
        self._answer = asyncio.get_running_loop().create_future()
        return f"{self._inbox}.{self._attempt}".encode()

    async def _commit(self, frame: bytes, count: int, last: Outgoing) -> None:
        self.sequence += count
        self._uncommitted = Uncommitted(self.sequence, last.message_id.decode(), _digest(last.data))
        await self._send([frame])

    async def _send(self, frames: list[bytes]) -> None:
        try:
            for each in frames:
                await send_framed(self._client, each)
        except CLIENT_ERRORS as error:
            if not is_passing(error):
                raise
            raise self._unavailable(type(error).__name__) from None

    async def _receive_answer(self, answer: Msg) -> None:
        """Receives an answer; ignores one that comes too late."""
        attempt = int(answer.subject.rpartition(".")[2])
        if self._answer is None or self._answer.done() or attempt != self._attempt:
            return
        if answer.headers and "Status" in answer.headers:
            status = answer.headers["Status"]
            self._answer.set_result({"Status": status, "error": {"code": int(status), "description": "no stream takes messages"}})
        elif answer.data:
            self._answer.set_result(orjson.loads(answer.data))


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _state_line(state: bytes) -> bytes:
    return b"%b:%b\r\n" % (STATE_HEADER.encode(), state)
