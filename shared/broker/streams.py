"""The parts of JetStream that the program uses: the streams of a group, for changes, for copied rows and for dead letters.

The streams have no consumers: the replicator appends under a fence, workers read by sequence with batched direct get
(NATS server 2.11, ADR-31), so a reader holds no state in the server and two readers never disturb each other.

Any replica of the stream answers a direct get, however old its data is, and none without a leader. A message that it
returns is right, for a message never changes; an empty answer, or its last message, proves nothing. So ``peek…`` reads
from any replica, for callers who ask again, and everything else reads from the leader where it matters.

Streams are created and changed through nats-py. Three requests are written here: batched direct get, which nats-py
lacks; a stream's state, because nats-py cuts the server's times to microseconds, and the time of creation is the
identity of an older stream; and a message from the leader, because nats-py parses headers as a mail's.

JetStream reserves a stream's ``max_bytes`` when it is created. It reports to an account what it has reserved, but not
what its servers have left; only that a stream is too large. So a new stream without a configured size is tried in
falling sizes. The accepted size was free, and the stream keeps a share of it: streams that are created later find room
too, however small the broker is.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import nats
import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, Placement, RetentionPolicy, StorageType, StoreCompression, StreamConfig

from pgsluice.shared import telemetry
from pgsluice.shared.broker.connection import REQUEST_TIMEOUT_S, creates_streams, unanswered
from pgsluice.shared.broker.stream_error import (
    MESSAGE_NOT_FOUND,
    NO_MESSAGE_FOUND,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    absent_error,
    answer_of,
    is_too_large,
    publish_error,
    stream_error,
)
from pgsluice.shared.config.stream_settings import StreamCompression, StreamSettings
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.wire.message import EXPECTED_LAST_SEQUENCE_HEADER, ID_HEADER
from pgsluice.shared.wire.names import GroupNames

MOST_BYTES = 10 * 1024**3
LEAST_BYTES = 256 * 1024**2
SHARES = 8


def trial_sizes() -> Iterator[int]:
    """Yields the sizes to try, the largest first."""
    size = SHARES * MOST_BYTES
    while size > LEAST_BYTES:
        yield size
        size //= 2
    yield LEAST_BYTES


def share_of(accepted: int) -> int:
    """Returns the size that a stream keeps after JetStream accepted ``accepted`` bytes."""
    return max(LEAST_BYTES, min(MOST_BYTES, accepted // SHARES))


DUPLICATE_WINDOW_S = 120.0
_END_OF_BATCH = "204"
_NOT_FOUND = "404"
_DIRECT_GET = "$JS.API.DIRECT.GET."
STREAM_MANAGEMENT = "$JS.API.STREAM."
CREATED_METADATA = "pgsluice.created"
_TRIAL_METADATA = "pgsluice.trial"
_MAKER = uuid.uuid4().hex[:8]
"""Identifies this process, in the identity of each stream that it creates."""

log = telemetry.logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamState:
    """``created`` is the stream's identity: when it was made, and a random part, as ``ensure`` wrote it into the
    metadata. The server's own creation time does not identify it: after an update of the configuration and a restart,
    it is the time of the update.

    ``first_sequence`` is one past ``last_sequence`` when the stream is empty. Sizes are bytes.
    """

    created: str
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int
    max_bytes: int

    @property
    def is_made_here(self) -> bool:
        """Returns whether this process made the stream."""
        return self.created.endswith(f" {_MAKER}")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message as JetStream holds it, with the publisher's headers and without JetStream's own."""

    sequence: int
    headers: Mapping[str, str]
    data: bytes = field(repr=False)  # row values
    stored_at: datetime


class Stream:
    """One stream. Every method raises TransientError when JetStream does not answer in time."""

    def __init__(self, client: Client, name: str, subjects: str) -> None:
        self._client = client
        self._jetstream = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self.name = name
        self._subjects = subjects

    async def ensure(self, settings: StreamSettings) -> StreamState:
        """Creates the stream, or brings size, replicas, tags and compression of an existing one to ``settings``; never touches
        messages. JetStream takes another compression at once, and follows it when its server has started again.
        Where ``settings`` leave the size open, a new stream gets one that fits, an existing one keeps its own. Where only an
        administrator creates streams, a missing one raises TerminalError, and one that differs stays as it is.
        """
        try:
            found = (await self._manage(self._jetstream.stream_info(self.name))).config
        except nats.js.errors.APIError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise stream_error(self.name, answer_of(error)) from None
            if not creates_streams(self._client):
                raise absent_error(f"stream {self.name}") from None
            found = await self._create(settings)
        metadata = _own_metadata(found.metadata)
        is_trial = bool(metadata.pop(_TRIAL_METADATA, ""))
        own_size = found.max_bytes or 0
        size = settings.max_bytes or (share_of(own_size) if is_trial else own_size)
        chosen = self.configuration(replace(settings, max_bytes=size))
        different = [name for name, value in chosen.items() if getattr(found, name) != value]
        if different and not creates_streams(self._client):
            log.warning(
                "only an administrator may change the stream, and it is not as configured",
                stream=self.name,
                different=", ".join(different),
            )
        elif is_trial or different:
            update = self._jetstream.update_stream(StreamConfig(**chosen, metadata=metadata))
            await self._manage(update, f"{self.name} of {size / 1024**2:.0f} MiB")
            if found.compression != chosen["compression"]:
                compression = chosen["compression"].value
                log.info(
                    "NATS compresses the stream in this way from its next start on", stream=self.name, compression=compression
                )
            if is_trial:
                log.info("stream has a size that fits; stream-max-bytes sets another", stream=self.name, max_bytes=size)
        state = await self.state()
        if state is None:
            raise TransientError(f"stream {self.name} was removed while it was made", "it is tried again", Cause.NATS)
        return state

    def configuration(self, settings: StreamSettings) -> dict[str, Any]:
        """Returns the chosen part of JetStream's configuration."""
        return stream_configuration(self.name, [self._subjects], settings)

    async def _create(self, settings: StreamSettings) -> StreamConfig:
        """Returns the configuration as created. A stream without a configured size is marked, until the size that fits
        was cut to a share of it."""
        metadata = {CREATED_METADATA: f"{datetime.now(UTC).isoformat()} {_MAKER}"}
        if not settings.max_bytes:
            metadata[_TRIAL_METADATA] = "true"
        sizes = [settings.max_bytes] if settings.max_bytes else list(trial_sizes())
        for size in sizes:
            chosen = self.configuration(replace(settings, max_bytes=size))
            try:
                return (await self._manage(self._jetstream.add_stream(StreamConfig(**chosen, metadata=metadata)))).config
            except nats.js.errors.APIError as error:
                if size == sizes[-1] or not is_too_large(answer_of(error)):
                    raise stream_error(f"{self.name} of {size / 1024**2:.0f} MiB", answer_of(error)) from None
        raise AssertionError("a last size was tried")

    async def state(self) -> StreamState | None:
        """Returns None when there is no such stream."""
        answer = await self._request(f"INFO.{self.name}", {})
        if "error" in answer:
            if answer["error"].get("err_code") == STREAM_NOT_FOUND:
                return None
            raise stream_error(self.name, answer["error"])
        return _stream_state(answer)

    async def peek(self, sequence: int) -> StoredMessage | None:
        """Returns the message with that sequence; None when the server that was asked does not show it, whatever the
        stream holds."""
        return await self._direct_get({"seq": sequence})

    async def message(self, sequence: int) -> StoredMessage | None:
        """Returns the message with that sequence; None when the stream does not hold it."""
        return await self.peek(sequence) or await self._leader_get({"seq": sequence})

    async def last_message_on(self, subject: str) -> StoredMessage | None:
        """Returns the newest message on ``subject``; None when the stream holds none."""
        return await self._leader_get({"last_by_subj": subject})

    async def next_message_on(self, subject: str, first_sequence: int) -> StoredMessage | None:
        """Returns the first message on ``subject`` with a sequence of at least ``first_sequence``; None when the stream
        holds none."""
        return await self._leader_get({"seq": first_sequence, "next_by_subj": subject})

    async def fetch(self, first_sequence: int, count: int, max_bytes: int) -> list[StoredMessage]:
        """Returns up to ``count`` messages in order, the first with a sequence of at least ``first_sequence``; from any
        replica.

        The answer ends early at ``max_bytes`` (but holds one message at least) or at the end of what the answering
        server has; the caller asks again. A gap inside shows in the sequences.
        """
        inbox = self._client.new_inbox()
        answers = _BatchAnswer()
        subscription = await self._client.subscribe(inbox, cb=answers.take, pending_msgs_limit=0, pending_bytes_limit=0)
        try:
            request = orjson.dumps({"seq": first_sequence, "batch": count, "max_bytes": max_bytes})
            await self._client.publish(_DIRECT_GET + self.name, request, reply=inbox)
            end = await answers.end()
            if end["Status"] not in (_END_OF_BATCH, _NOT_FOUND):
                raise self._unavailable(f"status {end['Status']} {end.get('Description', '')}")
            return answers.messages
        except (nats.errors.Error, TimeoutError) as error:
            raise self._unavailable(type(error).__name__) from None
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    async def purge_up_to(self, sequence: int, subject: str | None = None) -> None:
        """Removes every message up to and including ``sequence``, or those of one subject; none for 0."""
        if sequence > 0:  # the server takes "all before message 1" for "all"
            await self._manage(self._jetstream.purge_stream(self.name, seq=sequence + 1, subject=subject), self.name)

    async def delete_message(self, sequence: int) -> None:
        """Removes one message; nothing happens when it is gone."""
        await self._remove(self._jetstream.delete_msg(self.name, sequence), MESSAGE_NOT_FOUND)

    async def configuration_of(self, name: str) -> StreamConfig:
        """Returns JetStream's configuration of the stream ``name``."""
        return (await self._manage(self._jetstream.stream_info(name), name)).config

    async def delete(self) -> None:
        """Removes the stream and all its messages; nothing happens when there is none."""
        await self._remove(self._jetstream.delete_stream(self.name), STREAM_NOT_FOUND)

    async def _remove(self, call: Awaitable[object], gone: int) -> None:
        """``gone`` is the error code of an object that does not exist."""
        try:
            await self._manage(call)
        except nats.js.errors.APIError as error:
            if error.err_code != gone:
                raise stream_error(self.name, answer_of(error)) from None

    async def _manage(self, call: Awaitable[T], stream: str = "") -> T:
        """Returns JetStream's answer. One that is an error raises APIError or, for a ``stream`` that is named, the
        sentence about it."""
        try:
            return await call
        except (nats.errors.Error, TimeoutError) as error:
            if not isinstance(error, nats.js.errors.APIError) or error.err_code is None:  # without a code there was no answer
                raise self._unavailable(type(error).__name__) from None
            if stream:
                raise stream_error(stream, answer_of(error)) from None
            raise

    async def _direct_get(self, request: dict[str, Any]) -> StoredMessage | None:
        try:
            answer = await self._client.request(_DIRECT_GET + self.name, orjson.dumps(request), timeout=REQUEST_TIMEOUT_S)
        except nats.errors.NoRespondersError:
            return None  # no stream, or no leader
        except (nats.errors.Error, TimeoutError) as error:
            raise self._unavailable(type(error).__name__) from None
        headers = answer.headers or {}
        if headers.get("Status") == _NOT_FOUND:
            return None
        if "Status" in headers:
            raise self._unavailable(f"status {headers['Status']} {headers.get('Description', '')}")
        return _stored(headers, answer.data)

    async def _leader_get(self, request: dict[str, Any]) -> StoredMessage | None:
        """Reads from the stream's leader: finds what was acknowledged before. None if there is no such message, or no
        stream."""
        answer = await self._request(f"MSG.GET.{self.name}", request)
        if "error" not in answer:
            return _stored_at_leader(answer["message"])
        if answer["error"].get("err_code") in (NO_MESSAGE_FOUND, STREAM_NOT_FOUND):
            return None
        raise stream_error(self.name, answer["error"])

    async def _request(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._client.request(STREAM_MANAGEMENT + operation, orjson.dumps(request), timeout=REQUEST_TIMEOUT_S)
        except (nats.errors.Error, TimeoutError) as error:
            raise self._unavailable(type(error).__name__) from None
        content: dict[str, Any] = orjson.loads(answer.data)
        return content

    def _unavailable(self, reason: str) -> TransientError:
        return unanswered(self._client, f"stream {self.name}", reason)


class ChangeStream(Stream):
    """The group's changes in commit order, all on one subject."""

    def __init__(self, client: Client, names: GroupNames) -> None:
        super().__init__(client, names.changes_stream, names.changes_subject)
        self.subject = names.changes_subject
        self.bell = names.bell_subject

    async def last_message(self) -> StoredMessage | None:
        """Returns the newest message; None when the stream is empty."""
        return await self.last_message_on(self.subject)

    async def append(self, data: bytes, headers: Mapping[str, str], message_id: str, after: int) -> bool:
        """Stores one message after the sequence ``after``. False if another message follows it. After a TransientError
        it is not known whether it was stored."""
        told = {**headers, ID_HEADER: message_id, EXPECTED_LAST_SEQUENCE_HEADER: str(after)}
        try:
            answer = await self._manage(self._jetstream.publish(self.subject, data, stream=self.name, headers=told))
        except nats.js.errors.APIError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:
                return False
            raise publish_error(self.name, answer_of(error), "it is tried again when the worker is started") from None
        return not answer.duplicate

    async def peek_last(self) -> StoredMessage | None:
        """Returns the newest message that the answering server has; the stream may contain newer ones."""
        return await self._direct_get({"last_by_subj": self.subject})


class SnapshotStream(Stream):
    """Copied rows, one subject for each page range (``shared.wire.snapshot_message``)."""

    def __init__(self, client: Client, names: GroupNames) -> None:
        super().__init__(client, names.snapshot_stream, names.snapshot_subjects)
        self._begin_subjects = names.snapshot_begin_subject("*", "*")

    async def next_begin(self, first_sequence: int) -> StoredMessage | None:
        """Returns the first message from ``first_sequence`` on that begins a table; None without one."""
        return await self.next_message_on(self._begin_subjects, first_sequence)


class _BatchAnswer:
    """The answers to a batched direct get: messages, and a status at the end."""

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self._end: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    async def take(self, answer: Msg) -> None:
        headers = answer.headers or {}
        if "Status" not in headers:
            self.messages.append(_stored(headers, answer.data))
        elif not self._end.done():
            self._end.set_result(headers)

    async def end(self) -> Mapping[str, str]:
        """Returns the headers of the last answer. Raises TimeoutError when none comes for REQUEST_TIMEOUT_S."""
        seen = -1
        while seen < len(self.messages):
            seen = len(self.messages)
            await asyncio.wait({self._end}, timeout=REQUEST_TIMEOUT_S)
            if self._end.done():
                return self._end.result()
        raise TimeoutError


def stream_configuration(name: str, subjects: list[str], settings: StreamSettings) -> dict[str, Any]:
    """Returns the fixed part of a ``StreamConfig``: file storage, direct get, nothing discarded and nothing expired; a
    full stream refuses new messages."""
    chosen: dict[str, Any] = {
        "name": name,
        "subjects": subjects,
        "retention": RetentionPolicy.LIMITS,
        "storage": StorageType.FILE,
        "discard": DiscardPolicy.NEW,
        "compression": StoreCompression.S2 if settings.compression == StreamCompression.S2 else StoreCompression.NONE,
        "allow_direct": True,
        "max_bytes": settings.max_bytes,
        "max_msgs": -1,
        "max_age": 0,
        "num_replicas": settings.replicas,
        "duplicate_window": DUPLICATE_WINDOW_S,
    }
    if settings.placement_tags:
        chosen["placement"] = Placement(tags=list(settings.placement_tags))
    return chosen


def _stream_state(answer: Mapping[str, Any]) -> StreamState:
    state = answer["state"]
    return StreamState(
        created=_own_metadata(answer["config"].get("metadata")).get(CREATED_METADATA, answer["created"]),
        first_sequence=state["first_seq"] if state["messages"] else state["last_seq"] + 1,
        last_sequence=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        max_bytes=answer["config"]["max_bytes"],
    )


def _own_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the stream's metadata without what the server adds to it."""
    return {name: value for name, value in (metadata or {}).items() if not name.startswith("_nats.")}


def _stored(headers: Mapping[str, str], data: bytes) -> StoredMessage:
    return StoredMessage(int(headers["Nats-Sequence"]), headers, data, broker_time(headers["Nats-Time-Stamp"]))


def _stored_at_leader(message: Mapping[str, Any]) -> StoredMessage:
    """Decodes the leader's answer: a JSON object with headers and data in base 64."""
    lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
    headers = {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
    headers |= {"Nats-Subject": message["subject"], "Nats-Sequence": str(message["seq"])}
    return StoredMessage(message["seq"], headers, base64.b64decode(message.get("data", "")), broker_time(message["time"]))


def broker_time(stamp: str) -> datetime:
    """Returns a time that the server wrote, in UTC; it has nanoseconds."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(seconds).replace(tzinfo=UTC, microsecond=int((fraction + "000000")[:6]))
