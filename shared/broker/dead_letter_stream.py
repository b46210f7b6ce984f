"""The group's dead-letter stream: rejected changes that workers publish, and that the command ``dead`` shows and replays.

A worker creates it with its first dead letter, as durable as the stream that the change came from. Dead letters are few
(an option limits them), so they are read as a whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import nats.js.errors
from nats.aio.client import Client

from pgsluice.shared.broker.stream_error import CLIENT_ERRORS, STREAM_FULL
from pgsluice.shared.broker.streams import StoredMessage, Stream, StreamState
from pgsluice.shared.config.stream_settings import StreamCompression, StreamSettings
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.wire.dead_letter import LETTER_HEADER, POSITION_HEADER, DeadLetter, chunk_of, position_of
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Position

MAX_BYTES = 1024 * 1024 * 1024
"""NATS reserves this size. Enough for the dead letters of many workers: a row seldom has more than some kilobytes."""

_HEADER_BYTES = 16 * 1024
"""Room for headers in a NATS message, which counts towards the server's ``max_payload``."""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter in the stream. ``sequences`` are its messages. ``is_queued``: a replay is requested. ``places`` are
    notes that the worker wrote before it applied it. ``others`` are all other messages about its change: requests, and
    its earlier versions, if it was refused again."""

    letter: DeadLetter
    sequences: tuple[int, ...]
    is_queued: bool
    places: tuple[int, ...] = ()
    others: tuple[int, ...] = ()

    @property
    def last_sequence(self) -> int:
        return self.sequences[-1]

    @property
    def all_sequences(self) -> tuple[int, ...]:
        """Returns the sequences in the order in which they may be removed: after an interruption no dead letter loses
        the note that it was applied."""
        return (*self.sequences, *self.others, *self.places)


class Contents(NamedTuple):
    """``strays`` are messages whose dead letters are gone."""

    letters: list[StoredLetter]
    strays: list[int]


class DeadLetterStream(Stream):
    """Every method raises TransientError when JetStream does not answer in time."""

    def __init__(self, client: Client, names: GroupNames) -> None:
        super().__init__(client, names.dead_stream, names.dead_subjects)
        self._names = names

    async def ensure_like(self, name: str) -> StreamState:
        """Creates the stream when there is none, with replicas, placement and compression of the stream ``name``, and no larger
        than that."""
        state = await self.state()
        if state is not None:
            return state
        model = await self.configuration_of(name)
        tags = tuple(model.placement.tags or ()) if model.placement else ()
        size = min(model.max_bytes or MAX_BYTES, MAX_BYTES)
        compression = StreamCompression(model.compression or StreamCompression.NONE)
        return await self.ensure(StreamSettings(model.num_replicas or 1, tags, size, compression, retention_s=0))

    async def publish(self, letter: DeadLetter) -> StoredLetter:
        """Publishes the letter, which is stored when it returns."""
        subject = self._names.dead_subject(letter.worker)
        messages = letter.messages(self._client.max_payload - _HEADER_BYTES)
        sequences = [await self._publish(subject, data, headers) for headers, data in messages]
        return StoredLetter(letter, tuple(sequences), is_queued=False)

    async def ask(self, letter: DeadLetter) -> None:
        """Requests that the worker applies the dead letter, as it is in the stream then."""
        await self._publish(self._names.replay_subject(letter.worker), b"", {POSITION_HEADER: str(letter.position)})

    async def place(self, letter: DeadLetter) -> int:
        """Notes that the worker is about to apply the dead letter, after all that it noted before. Returns the sequence
        of the note."""
        return await self._publish(self._names.applying_subject(letter.worker), b"", {POSITION_HEADER: str(letter.position)})

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        try:
            return (await self._jetstream.publish(subject, data, headers=headers)).seq
        except nats.js.errors.APIError as error:
            raise TransientError(
                f"stream {self.name} does not take a dead letter ({error.description})",
                "replay or discard dead letters, or give the stream more room",
                Cause.STREAM_FULL if error.err_code in STREAM_FULL else Cause.NATS,
            ) from None
        except CLIENT_ERRORS as error:
            raise self._unavailable(type(error).__name__) from None

    async def letters(self, worker: str | None = None) -> list[StoredLetter]:
        """Returns the dead letters of one worker, or of all, by worker and position; the newest version if a change was
        refused again. Empty without a stream."""
        return (await self.contents(worker)).letters

    async def contents(self, worker: str | None = None) -> Contents:
        """Returns the dead letters, and stray messages of others."""
        state = await self.state()
        if state is None or not state.messages:
            return Contents([], [])
        messages = await self._messages(state.first_sequence)
        if await self.state() is None:  # removed meanwhile: a part of it would show requests as carried out
            return Contents([], [])
        found = _by_change(messages)
        wanted = [found[change] for change in sorted(found) if worker in (None, change[0])]
        strays = [sequence for each in wanted if not each.letters for sequence in (*each.requests, *each.places)]
        return Contents([stored for each in wanted if (stored := each.newest) is not None], strays)

    async def remove(self, letters: Sequence[StoredLetter]) -> None:
        """Removes dead letters; ignores those already removed."""
        for stored in letters:
            await self.remove_messages(stored.all_sequences)

    async def remove_messages(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            await self.delete_message(sequence)

    async def _messages(self, sequence: int) -> list[StoredMessage]:
        """Reads all messages, one by one from the leader: a replica might lack a new dead letter, or still show a
        removed one."""
        messages: list[StoredMessage] = []
        while (message := await self.next_message_on(">", sequence)) is not None:
            messages.append(message)
            sequence = message.sequence + 1
        return messages


class LetterCounts:
    """The number of dead letters of each worker. Repeated calls read the stream only if it has changed."""

    def __init__(self) -> None:
        self._seen: tuple[str, int, int] | None = None
        self._counts: Counter[str] = Counter()

    async def of(self, stream: DeadLetterStream) -> Counter[str]:
        """Returns the counts by worker."""
        state = await stream.state()
        seen = None if state is None else (state.created, state.messages, state.last_sequence)
        if seen != self._seen:
            self._counts = Counter(stored.letter.worker for stored in await stream.letters())
            self._seen = seen
        return self._counts


_Change = tuple[str, Position]
"""Worker and position of a change."""


@dataclass(slots=True)
class _FoundLetters:
    """The dead letter, requests and places of one change, in the order of the stream."""

    letters: list[StoredLetter] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    @property
    def newest(self) -> StoredLetter | None:
        """The dead letter that was refused most often, with all other messages."""
        if not self.letters:
            return None
        newest = max(self.letters, key=lambda stored: (stored.letter.attempts, stored.last_sequence))
        older = [sequence for stored in self.letters if stored is not newest for sequence in stored.sequences]
        is_asked = any(sequence > newest.last_sequence for sequence in self.requests)
        places = tuple(sequence for sequence in self.places if sequence > newest.last_sequence)
        others = tuple(sorted({*older, *self.requests, *self.places} - {*places}))
        return replace(newest, is_queued=newest.is_queued or is_asked, places=places, others=others)


def _by_change(messages: Sequence[StoredMessage]) -> dict[_Change, _FoundLetters]:
    found: defaultdict[_Change, _FoundLetters] = defaultdict(_FoundLetters)
    open_chunks: dict[str, list[StoredMessage]] = {}
    for message in messages:
        subject, chunk = message.headers["Nats-Subject"], chunk_of(message.headers)
        worker, _, kind = subject.split(".", 3)[3].partition(".")
        is_request = kind == "replay"
        if LETTER_HEADER not in message.headers:
            about = found[worker, position_of(message.headers)]
            (about.requests if is_request else about.places).append(message.sequence)
            continue
        chunks = open_chunks.setdefault(subject, [])
        if chunk.index == 1:
            chunks.clear()
        chunks.append(message)
        if chunk.is_last and len(chunks) == chunk.count:
            letter = DeadLetter.of_messages(message.headers, [part.data for part in chunks])
            sequences = tuple(part.sequence for part in chunks)
            found[letter.worker, letter.position].letters.append(StoredLetter(letter, sequences, is_request))
            chunks.clear()
    return found
