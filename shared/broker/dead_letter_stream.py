"""The group's dead-letter stream: what workers publish, what the command ``dead`` shows and moves.

A worker creates it when it has the first letter, as durable as the stream that the change came from. Letters are few (an option
bounds them), so they are read as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import nats.js.errors
from nats.aio.client import Client

from pgsluice.shared.broker.stream_error import CLIENT_ERRORS, STREAM_FULL
from pgsluice.shared.broker.streams import StoredMessage, Stream, StreamState
from pgsluice.shared.config.stream_settings import StreamCompression, StreamSettings
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.wire.dead_letter import DeadLetter, chunk_of
from pgsluice.shared.wire.names import GroupNames

MAX_BYTES = 1024 * 1024 * 1024
"""NATS reserves it. Enough for the letters of many workers: a row seldom has more than some kilobytes."""

_HEADER_BYTES = 16 * 1024
"""Room for headers in a NATS message, which counts towards the server's ``max_payload``."""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A letter in the stream. ``sequences`` are its messages. ``is_queued``: the worker is asked to apply it."""

    letter: DeadLetter
    sequences: tuple[int, ...]
    is_queued: bool

    @property
    def last_sequence(self) -> int:
        return self.sequences[-1]


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

    async def publish(self, letter: DeadLetter, *, queue: bool = False) -> StoredLetter:
        """Stored when it returns. ``queue``: the worker is asked to apply it."""
        subject = self._names.replay_subject(letter.worker) if queue else self._names.dead_subject(letter.worker)
        sequences = []
        for headers, data in letter.messages(self._client.max_payload - _HEADER_BYTES, "/replay" if queue else ""):
            try:
                sequences.append((await self._jetstream.publish(subject, data, headers=headers)).seq)
            except nats.js.errors.APIError as error:
                raise TransientError(
                    f"stream {self.name} does not take a dead letter ({error.description})",
                    "replay or discard dead letters, or give the stream more room",
                    Cause.STREAM_FULL if error.err_code in STREAM_FULL else Cause.NATS,
                ) from None
            except CLIENT_ERRORS as error:
                raise self._unavailable(type(error).__name__) from None
        return StoredLetter(letter, tuple(sequences), queue)

    async def letters(self, worker: str | None = None) -> list[StoredLetter]:
        """All of one worker, or of all, by worker and position; of a letter that is there twice (its move was interrupted) the
        one that counts. Nothing when there is no stream."""
        state = await self.state()
        if state is None or not state.messages:
            return []
        messages = await self._messages(state.first_sequence)
        found: dict[tuple[str, object], StoredLetter] = {}
        for stored in _joined(messages):
            letter = stored.letter
            other = found.get((letter.worker, letter.position))
            if worker in (None, letter.worker) and (other is None or _counts(stored, other)):
                found[letter.worker, letter.position] = stored
        return sorted(found.values(), key=lambda stored: (stored.letter.worker, stored.letter.position))

    async def remove(self, letters: list[StoredLetter]) -> None:
        """Nothing happens to those that are gone."""
        for stored in letters:
            for sequence in stored.sequences:
                await self.delete_message(sequence)

    async def _messages(self, sequence: int) -> list[StoredMessage]:
        """All there are, one by one from the leader: a letter that a replica does not show yet must not be taken for none, nor
        one that was removed for one that is there."""
        messages: list[StoredMessage] = []
        while (message := await self.next_message_on(">", sequence)) is not None:
            messages.append(message)
            sequence = message.sequence + 1
        return messages


class LetterCounts:
    """How many letters each worker has, asked again and again: they are read only when the stream is another than before."""

    def __init__(self) -> None:
        self._seen: tuple[str, int, int] | None = None
        self._counts: Counter[str] = Counter()

    async def of(self, stream: DeadLetterStream) -> Counter[str]:
        """By worker."""
        state = await stream.state()
        seen = None if state is None else (state.created, state.messages, state.last_sequence)
        if seen != self._seen:
            self._counts = Counter(stored.letter.worker for stored in await stream.letters())
            self._seen = seen
        return self._counts


def _joined(messages: list[StoredMessage]) -> Iterator[StoredLetter]:
    """Letters whose chunks are all there; the chunks of one subject follow each other."""
    open_chunks: dict[str, list[StoredMessage]] = {}
    for message in messages:
        subject, chunk = message.headers["Nats-Subject"], chunk_of(message.headers)
        chunks = open_chunks.setdefault(subject, [])
        if chunk.index == 1:
            chunks.clear()
        chunks.append(message)
        if chunk.is_last and len(chunks) == chunk.count:
            letter = DeadLetter.of_messages(message.headers, [part.data for part in chunks])
            yield StoredLetter(letter, tuple(part.sequence for part in chunks), subject.endswith(".replay"))
            chunks.clear()


def _counts(stored: StoredLetter, other: StoredLetter) -> bool:
    """Of two of one change: the one that was refused more often, else the one that is to be applied."""
    return (stored.letter.attempts, stored.is_queued) >= (other.letter.attempts, other.is_queued)
