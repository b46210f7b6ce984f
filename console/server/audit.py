"""Who did what to what: a stream that is only appended to, and that ends by age alone.

A write that nobody could be held to is not done: that the stream is there is seen before, and the entry is stored before the
answer is sent. Logins that fail are in the log, not here, or strangers could fill the stream.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from pgsluice.shared.broker.connection import REQUEST_TIMEOUT_S
from pgsluice.shared.broker.record import MalformedError, TimeText, decode, encode
from pgsluice.shared.broker.stream_error import CLIENT_ERRORS
from pgsluice.shared.errors import Cause, TransientError

_STREAM = "pgsluice-audit"
_SUBJECT = "pgsluice-audit.entries"
KEPT_S = 90 * 24 * 3600
_MOST_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """``action`` is the operation's name in the API's description, ``target`` what it was done to; ``outcome`` is "done", or the
    title of the problem. Revisions are those of what was replaced and of what replaced it, where there are any."""

    at: TimeText
    who: str
    role: str
    client: str
    action: str
    target: str
    outcome: str
    reason: str = ""
    revision_before: int | None = None
    revision_after: int | None = None


@dataclass(frozen=True, slots=True)
class NumberedEntry:
    """``sequence`` numbers entries in the order in which they were stored."""

    sequence: int
    entry: AuditEntry


class AuditStream:
    """Every method raises TransientError when NATS does not answer."""

    def __init__(self, client: Client) -> None:
        self._jetstream = client.jetstream(timeout=REQUEST_TIMEOUT_S)

    async def ensure(self, replicas: int = 1) -> None:
        """Makes the stream where there is none."""
        config = StreamConfig(
            _STREAM,
            subjects=[_SUBJECT],
            storage=StorageType.FILE,
            discard=DiscardPolicy.OLD,
            max_age=KEPT_S,
            max_bytes=_MOST_BYTES,
            num_replicas=replicas,
            deny_delete=True,
            deny_purge=True,
        )
        try:
            await self._jetstream.stream_info(_STREAM)
        except nats.js.errors.NotFoundError:
            try:
                await self._jetstream.add_stream(config)
            except CLIENT_ERRORS as error:
                raise _unreachable(error) from None
        except CLIENT_ERRORS as error:
            raise _unreachable(error) from None

    async def add(self, entry: AuditEntry) -> None:
        """Returns when the entry is durable."""
        try:
            await self._jetstream.publish(_SUBJECT, encode(entry))
        except CLIENT_ERRORS as error:
            raise _unreachable(error) from None

    async def newest(self, most: int, before: int | None = None) -> list[NumberedEntry]:
        """Up to ``most`` entries, the newest first, of those that are earlier than the sequence ``before``."""
        try:
            state = (await self._jetstream.stream_info(_STREAM)).state
            last = state.last_seq if before is None else min(before - 1, state.last_seq)
            first = max(state.first_seq, last - most + 1, 1)
            messages = [self._jetstream.get_msg(_STREAM, sequence) for sequence in range(last, first - 1, -1)]
            found = await asyncio.gather(*messages)
        except nats.js.errors.NotFoundError:
            return []
        except CLIENT_ERRORS as error:
            raise _unreachable(error) from None
        return [_numbered(message.seq or 0, message.data or b"") for message in found]


def now() -> str:
    return datetime.now(UTC).isoformat()


def _numbered(sequence: int, data: bytes) -> NumberedEntry:
    try:
        return NumberedEntry(sequence, decode(AuditEntry, data))
    except (MalformedError, orjson.JSONDecodeError):
        return NumberedEntry(sequence, AuditEntry("", "", "", "", "an entry of another version", "", ""))


def _unreachable(error: Exception) -> TransientError:
    return TransientError(
        f"the audit's stream does not answer ({type(error).__name__})", "check that NATS runs and has a leader", Cause.NATS
    )
