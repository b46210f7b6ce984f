"""Events on their way from a task to the driver: lines of JSON, and of which table and kind each is.

A receipt's body is a row of sections, one for each message that has events: a header (sequence, number of events, length of the
list of kinds), the kinds as JSON, for each event the number of its kind and its length, then their text. Integers are
little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import orjson

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.subscriptions.subscription_settings import EVENTS
from pgsluice.worker.sinks.lines.json_lines import encode_lines
from pgsluice.worker.sinks.lines.line_output import receipt_bodies
from pgsluice.worker.sinks.sink import Partition

_HEADER = struct.Struct("<qII")


class EventKind(NamedTuple):
    """``event`` is one of EVENTS."""

    schema: str
    table: str
    event: str


class Event(NamedTuple):
    """``text`` is one JSON object and a line feed."""

    kind: EventKind
    text: bytes


class MessageEvents(NamedTuple):
    """The events of one message, in order."""

    sequence: int
    events: list[Event]


@dataclass(frozen=True, slots=True)
class EventWriter:
    """Of copied rows there are no events."""

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return receipt_bodies((_section(message), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return receipt_bodies(([], not rows.more_follow) for rows in copied)


def _section(message: MessageChanges) -> list[bytes]:
    kinds: dict[EventKind, int] = {}
    numbers: list[int] = []
    texts: list[bytes] = []
    for lines in encode_lines(message):
        for line in lines.splitlines(keepends=True):
            content = orjson.loads(line)
            event = content["operation"].lower()
            if event in EVENTS:
                kind = EventKind(content["schema"], content["table"], event)
                numbers.append(kinds.setdefault(kind, len(kinds)))
                texts.append(line)
    if not texts:
        return []
    listed, count = orjson.dumps([tuple(kind) for kind in kinds]), len(texts)
    columns = struct.pack(f"<{count}H", *numbers) + struct.pack(f"<{count}I", *map(len, texts))
    return [_HEADER.pack(message.sequence, count, len(listed)), listed, columns, *texts]


def decode_events(body: bytes) -> Iterator[MessageEvents]:
    """The messages of a receipt's body in order."""
    offset = 0
    while offset < len(body):
        sequence, count, size = _HEADER.unpack_from(body, offset)
        offset += _HEADER.size
        kinds = [EventKind(*kind) for kind in orjson.loads(body[offset : offset + size])]
        offset += size
        numbers = struct.unpack_from(f"<{count}H", body, offset)
        offset += 2 * count
        lengths = struct.unpack_from(f"<{count}I", body, offset)
        ends = list(accumulate(lengths, initial=offset + 4 * count))
        texts = (body[begin:end] for begin, end in pairwise(ends))
        yield MessageEvents(sequence, [Event(kinds[number], text) for number, text in zip(numbers, texts, strict=True)])
        offset = ends[-1]
