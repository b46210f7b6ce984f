"""A dead letter: one change that a worker could not apply, with everything that is needed to apply it later.

    subject
      pgsluice.<group>.dead.<worker>            letters
      pgsluice.<group>.dead.<worker>.replay     requests: the worker must apply a dead letter that is older than this
      pgsluice.<group>.dead.<worker>.applying   places: the worker's own note, before it applies a dead letter; the
                                                sequence is the position that the sink keeps with its data
    NATS headers of a request and of a place, which have no body
      Pgsluice-Position        position of the change
    NATS headers of a dead letter
      Nats-Msg-Id              <worker>/<position>/<attempts>, for a chunk with /<i> appended
      Pgsluice-Format          pgoutput/1
      Pgsluice-Position        position of the change
      Pgsluice-Dead-Letter     its other facts, as JSON in ASCII
      Pgsluice-Chunk           i/n, only when the body did not fit one NATS message
    body
      as in ``shared.wire.message``: descriptor, Relation, Begin, the change as the source sent it, Commit

Only the worker moves dead letters: one that is refused again is written again, with one more attempt, and the older one
is removed. So a request or a place that is older than the dead letter it names has no effect any more.

A copied row has no position in commit order. Its dead letter holds the corresponding Insert, and its position is
``copied_position``, which comes before all changes.

A row that a pipeline's run could not publish is no change. Its dead letter is RUNS' own, under a number made of the
row's key, and its body holds no change: a replay has the next run read the row again.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from struct import Struct
from typing import Any

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.message import CHUNK_HEADER, FORMAT_HEADER, ID_HEADER, WHOLE, Chunk, cut
from pgsluice.shared.wire.position import LSN, Position

POSITION_HEADER = "Pgsluice-Position"
LETTER_HEADER = "Pgsluice-Dead-Letter"

_FORMAT = "pgoutput/1"
_U32 = Struct(">I")
_ROWS_PER_MESSAGE = 1 << 32


RUNS = "RUN"
"""Replaces a worker's name for a pipeline's runs. No worker has that name: their names have no capitals."""


def row_position(row: str) -> Position:
    """Returns the position for the row of a query with that key, as JSON: the same whenever it is read."""
    digest = hashlib.sha256(row.encode()).digest()
    return Position(LSN(0), int.from_bytes(digest[:7]) + 1)


def copied_position(sequence: int, row: int) -> Position:
    """Returns the position for row ``row``, counted from 0, in the message ``sequence`` of the snapshot stream."""
    return Position(LSN(0), sequence * _ROWS_PER_MESSAGE + row + 1)


def now() -> str:
    """Returns the time for a dead letter, as RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """``sequence`` is the message that the change came in: of the snapshot stream when a ``snapshot`` is named, else of
    the change stream. ``attempts`` counts how often the change was refused. ``reason`` and ``table`` (qualified) are
    for readers. ``row`` is the key of a row that a run could not publish, as JSON; then ``sequence`` is the run's
    number. "" for a change."""

    worker: str
    position: Position
    table: str
    reason: str
    time: str
    sequence: int
    snapshot: str
    attempts: int
    body: bytes = field(repr=False)  # row values
    row: str = field(default="", repr=False)

    @property
    def is_copied(self) -> bool:
        return bool(self.snapshot)

    def refused_again(self, reason: str) -> DeadLetter:
        return replace(self, reason=reason, time=now(), attempts=self.attempts + 1)

    def messages(self, max_payload: int) -> list[tuple[dict[str, str], bytes]]:
        """Headers and data of the NATS messages that hold it, in order."""
        headers = {
            ID_HEADER: f"{self.worker}/{self.position}/{self.attempts}",
            FORMAT_HEADER: _FORMAT,
            POSITION_HEADER: str(self.position),
            LETTER_HEADER: json.dumps(self._facts()),
        }
        return [
            (headers if chunk == WHOLE else headers | _of_chunk(headers[ID_HEADER], chunk), data)
            for chunk, data in cut(self.body, max_payload)
        ]

    @classmethod
    def of_messages(cls, headers: Mapping[str, str], bodies: Sequence[bytes]) -> DeadLetter:
        """Decodes: the inverse of ``messages``, from the headers of any of them and the data of all. Raises WireError."""
        try:
            return cls(
                position=Position.parse(headers[POSITION_HEADER]), **orjson.loads(headers[LETTER_HEADER]), body=b"".join(bodies)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"a message of the dead-letter stream is malformed ({type(error).__name__})") from None

    def encode(self) -> bytes:
        """Encodes the dead letter for the way from a task to the driver."""
        facts = orjson.dumps(self._facts() | {"position": str(self.position)})
        return _U32.pack(len(facts)) + facts + self.body

    @classmethod
    def decode(cls, encoded: bytes) -> DeadLetter:
        try:
            end = _U32.size + _U32.unpack_from(encoded)[0]
            facts: dict[str, Any] = orjson.loads(encoded[_U32.size : end])
            return cls(**(facts | {"position": Position.parse(str(facts["position"]))}), body=encoded[end:])
        except (struct.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise WireError(f"a dead letter is malformed ({type(error).__name__})") from None

    def _facts(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "table": self.table,
            "reason": self.reason,
            "time": self.time,
            "sequence": self.sequence,
            "snapshot": self.snapshot,
            "attempts": self.attempts,
        } | ({"row": self.row} if self.row else {})


def _of_chunk(message_id: str, chunk: Chunk) -> dict[str, str]:
    return {ID_HEADER: f"{message_id}/{chunk.index}", CHUNK_HEADER: str(chunk)}


def position_of(headers: Mapping[str, str]) -> Position:
    """Returns the change that the message is about."""
    try:
        return Position.parse(headers[POSITION_HEADER])
    except (KeyError, ValueError) as error:
        raise WireError(f"a message of the dead-letter stream is malformed ({type(error).__name__})") from None


def chunk_of(headers: Mapping[str, str]) -> Chunk:
    """Returns which part of a dead letter's body the message holds."""
    try:
        return Chunk.parse(headers.get(CHUNK_HEADER, "1/1"))
    except ValueError as error:
        raise WireError(f"a message of the dead-letter stream has a malformed header ({error})") from None
