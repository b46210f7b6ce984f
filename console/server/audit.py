"""The audit of writes. Streams that are append-only, and whose entries end by age alone.

The server does no write without an entry: it checks first that the stream exists and has room, and stores the entry
before it sends the answer. No token can push entries out by writing more: a full stream takes no entry, and each token
has a limit.

Refused writes change nothing, and the holder of a token may send any number of them. So they go into a separate stream,
which drops the oldest. It holds the first refusal of each token and minute, and then their number. Only the log has
failed logins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RawStreamMsg, StorageType, StreamConfig, StreamInfo

from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.shared import telemetry
from pgsluice.shared.broker.connection import REQUEST_TIMEOUT_S, creates_streams, unanswered
from pgsluice.shared.broker.record import MalformedError, TimeText, decode, encode
from pgsluice.shared.broker.stream_error import CLIENT_ERRORS, absent_error
from pgsluice.shared.errors import TransientError

KEPT_S = 90 * 24 * 3600
COUNTING_S = 60.0
MOST_OF_A_TOKEN = 40_000
"""The most entries of a token in KEPT_S: one every three minutes. So many of the longest entries take less than half of the
stream."""

AUDIT_STREAM = "pgsluice-audit"
REFUSED_STREAM = "pgsluice-audit-refused"
AUDIT_SUBJECT = "pgsluice-audit.entries"
"""The subject of writes, followed by the id of the token; alone for servers of an older version."""
_MOST_BYTES = 256 * 1024 * 1024
_MOST_REFUSED_BYTES = 32 * 1024 * 1024
_ROOM_BYTES = 1024 * 1024
"""Room for the writes that are under way when the server sees that a stream is full."""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """``action`` is the operation's name in the API's description, ``target`` what it was done to; ``outcome`` is
    "done", or the title of the problem. Revisions are of the replaced object and of its replacement, if any. ``groups``
    are the groups concerned. ``times``: how many of the token's and the minute's entries it summarizes, the newest
    included."""

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
    groups: tuple[str, ...] = ()
    times: int = 1


@dataclass(frozen=True, slots=True)
class NumberedEntry:
    """``sequence`` numbers entries in the order in which they were stored."""

    sequence: int
    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class MissingEntries:
    """The sequences from ``first`` to ``last`` are missing: by age, or because an administrator of NATS removed them."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class AuditPart:
    """Entries, the newest first. ``next_before`` leads to earlier entries; None without any."""

    entries: tuple[NumberedEntry, ...] = ()
    missing: tuple[MissingEntries, ...] = ()
    next_before: int | None = None


@dataclass(slots=True)
class _Refused:
    """Refusals of one token in one minute that are only counted: the newest, and their number."""

    minute: int
    newest: AuditEntry
    count: int = 0


class AuditStream:
    """Both streams. Every method raises TransientError when NATS does not answer."""

    def __init__(self, client: Client, replicas: int = 1) -> None:
        self._client = client
        self._jetstream = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self._replicas = replicas
        self._refused: dict[str, _Refused] = {}
        """The refusals by the id of the token."""

    async def make(self) -> None:
        """Creates the streams that do not exist. Raises TerminalError where only an administrator creates them."""
        await self._ensure_done(None)
        await self._ensure_refused()

    async def ensure(self, token: str) -> None:
        """Creates the stream if it does not exist. Raises Problem when it has no room for an entry of the token of that id."""
        info = await self._ensure_done(f"{AUDIT_SUBJECT}.{token}")
        if (info.config.max_bytes or 0) > 0 and info.state.bytes > (info.config.max_bytes or 0) - _ROOM_BYTES:
            raise Problem(
                ProblemKind.UNAVAILABLE,
                f"the audit is full, and no write is done without an entry: stream {AUDIT_STREAM} has {info.state.bytes} bytes",
                f"have an administrator of NATS raise its max_bytes; entries end after {KEPT_S // 86_400} days",
            )
        if sum((info.state.subjects or {}).values()) >= MOST_OF_A_TOKEN:
            raise Problem(
                ProblemKind.TOO_MANY,
                f"this token has written {MOST_OF_A_TOKEN} times in {KEPT_S // 86_400} days, and the audit takes no more",
                "create another token, and find out how this one was used",
            )

    async def add(self, token: str, entry: AuditEntry) -> None:
        """Adds an entry for what the holder of the token of that id did. Returns when the entry is durable."""
        await self._publish(f"{AUDIT_SUBJECT}.{token}", entry)

    async def count_refused(self, token: str, entry: AuditEntry) -> None:
        """Counts a refusal. The first of the token and the minute is durable when it returns; of later ones the audit gets the
        number."""
        minute, before = int(time.time() // COUNTING_S), self._refused.get(token)
        if before is not None and before.minute == minute:
            before.newest, before.count = entry, before.count + 1
            return
        self._refused[token] = _Refused(minute, entry)
        await self._ensure_refused()
        await self._publish(f"{REFUSED_STREAM}.{token}", entry)
        if before is not None:
            await self._store_count(token, before)

    async def store_counts(self, *, at_end: bool = False) -> None:
        """Writes the counts of the minutes that are over; ``at_end``: all counts."""
        minute = int(time.time() // COUNTING_S)
        for token, refused in list(self._refused.items()):
            if at_end or refused.minute < minute:
                del self._refused[token]
                await self._store_count(token, refused)

    async def newest(self, most: int, before: int | None = None, *, refused: bool = False) -> AuditPart:
        """Returns up to ``most`` entries before the sequence ``before``, and the sequences that are missing between them."""
        stream = REFUSED_STREAM if refused else AUDIT_STREAM
        try:
            state = (await self._jetstream.stream_info(stream)).state
            last = state.last_seq if before is None else min(before - 1, state.last_seq)
            first = max(state.first_seq, last - most + 1, 1)
            messages = [self._jetstream.get_msg(stream, sequence) for sequence in range(last, first - 1, -1)]
            found = list(_kept(await asyncio.gather(*messages, return_exceptions=True)))
        except nats.js.errors.NotFoundError:
            return AuditPart()
        except CLIENT_ERRORS as error:
            raise self._unreachable(error) from None
        entries = tuple(map(_numbered, found))
        following = first if first > max(state.first_seq, 1) else None
        return AuditPart(entries, tuple(_gaps(entries, last, 1 if following is None else first)), following)

    async def _ensure_done(self, counted: str | None) -> StreamInfo:
        """Ensures the stream of writes. Its info has the number of messages on the subject ``counted``."""
        subjects = [AUDIT_SUBJECT, f"{AUDIT_SUBJECT}.*"]
        config = self._config(AUDIT_STREAM, subjects, DiscardPolicy.NEW, _MOST_BYTES)
        info = await self._ensured(config, counted)
        if info.config.discard is not config.discard or not set(subjects) <= set(info.config.subjects or ()):
            await self._bring_up_to_date(info, config)
        return info

    async def _ensure_refused(self) -> None:
        await self._ensured(self._config(REFUSED_STREAM, [f"{REFUSED_STREAM}.*"], DiscardPolicy.OLD, _MOST_REFUSED_BYTES))

    def _config(self, name: str, subjects: list[str], discard: DiscardPolicy, most_bytes: int) -> StreamConfig:
        return StreamConfig(
            name,
            subjects=subjects,
            storage=StorageType.FILE,
            discard=discard,
            max_age=KEPT_S,
            max_bytes=most_bytes,
            num_replicas=self._replicas,
            deny_delete=True,
            deny_purge=True,
        )

    async def _ensured(self, config: StreamConfig, counted: str | None = None) -> StreamInfo:
        """Returns the stream, created if it does not exist."""
        assert config.name is not None
        try:
            return await self._jetstream.stream_info(config.name, subjects_filter=counted)
        except nats.js.errors.NotFoundError:
            if not creates_streams(self._client):
                raise absent_error(f"stream {config.name}") from None
            try:
                return await self._jetstream.add_stream(config)
            except CLIENT_ERRORS as error:
                raise self._unreachable(error) from None
        except CLIENT_ERRORS as error:
            raise self._unreachable(error) from None

    async def _bring_up_to_date(self, info: StreamInfo, config: StreamConfig) -> None:
        """Changes a stream of an older version, which drops the oldest entries when it is full. Other settings stay as
        administrators made them."""
        if not creates_streams(self._client):
            log.warning("only an administrator may change the stream, and it is of an older version", stream=config.name)
            return
        try:
            await self._jetstream.update_stream(info.config.evolve(discard=config.discard, subjects=config.subjects))
        except CLIENT_ERRORS as error:
            raise self._unreachable(error) from None

    async def _publish(self, subject: str, entry: AuditEntry) -> None:
        """Publishes the entry, and logs it: a client that reaches only NATS cannot remove it from the log."""
        log.info("audit", **asdict(entry))
        try:
            await self._jetstream.publish(subject, encode(entry))
        except CLIENT_ERRORS as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: BaseException) -> TransientError:
        return unanswered(self._client, "the audit's stream", type(error).__name__)

    async def _store_count(self, token: str, refused: _Refused) -> None:
        if refused.count:
            await self._publish(f"{REFUSED_STREAM}.{token}", replace(refused.newest, times=refused.count))


def now() -> str:
    return datetime.now(UTC).isoformat()


def plain_text(text: str, most: int) -> str:
    """Returns as much of a client's text as an entry takes: at most ``most`` characters, and none that controls a terminal."""
    return "".join(character if character.isprintable() else " " for character in text[:most])


def _gaps(entries: Sequence[NumberedEntry], last: int, first: int) -> list[MissingEntries]:
    """Returns the sequences from ``last`` down to ``first`` that are missing in ``entries``, which begin with the newest."""
    gaps, expected = [], last
    for sequence in [*(each.sequence for each in entries), first - 1]:
        if sequence < expected:
            gaps.append(MissingEntries(sequence + 1, expected))
        expected = sequence - 1
    return gaps


def _kept(found: Iterable[RawStreamMsg | BaseException]) -> Iterator[RawStreamMsg]:
    """Yields entries, without ones that ended by their age meanwhile. Raises other errors."""
    for each in found:
        if isinstance(each, RawStreamMsg):
            yield each
        elif not isinstance(each, nats.js.errors.NotFoundError):
            raise each


def _numbered(message: RawStreamMsg) -> NumberedEntry:
    try:
        return NumberedEntry(message.seq or 0, decode(AuditEntry, message.data or b""))
    except (MalformedError, orjson.JSONDecodeError):
        return NumberedEntry(message.seq or 0, AuditEntry("", "", "", "", "an entry of another version", "", ""))
