"""Events on their way from a task to the driver: lines of JSON, each with its table and kind.

A receipt's body begins with the digests of the views that the task knew (their number, then each). A row of sections
follows: for each message with events one with the common events, then one for each view whose rules touch it, if its
events differ. A section is a header (sequence, digest of the view or zeros, number of events, length of the text that
follows), that text in JSON (the list of kinds; why the view cannot be worked out; null if it is too large to be handed
over), for each event the number of its kind and its length, then their text. Integers are little-endian.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import orjson

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.subscriptions.subscription_settings import EVENTS
from pgsluice.shared.wire.table import TableName
from pgsluice.worker.sinks.lines.json_lines import encode_lines
from pgsluice.worker.sinks.lines.line_fields import line_fields
from pgsluice.worker.sinks.lines.line_output import receipt_bodies
from pgsluice.worker.sinks.sink import Partition
from pgsluice.worker.sinks.subscriptions.subscription_rules import LONGEST_S, EventView, RulesFailedError

MOST_VIEWED_BYTES = 8 * 1024 * 1024
"""The most bytes of one message's views: the driver holds several messages. A view beyond that, or beyond LONGEST_S for all of
them together, is read from the stream again on its own."""

_COUNT = struct.Struct("<I")
_HEADER = struct.Struct("<q8sII")
_EVERYBODY = bytes(8)
_TOO_MUCH = b"null"


class EventKind(NamedTuple):
    """``event`` is one of EVENTS."""

    schema: str
    table: str
    event: str


class Event(NamedTuple):
    """``text`` is one JSON object and a line feed."""

    kind: EventKind
    text: bytes


class Unworkable(NamedTuple):
    """The rules cannot be applied to a message. ``reason`` is a sentence without row values."""

    reason: str


class Unseen(NamedTuple):
    """The events of a view are missing here: they have to be read from the stream for this view."""


Seen = list[Event] | Unworkable | Unseen


@dataclass(slots=True)
class MessageEvents:
    """The events of one message, in order, without subscribers' rules. ``views`` are the ones that differ, by digest;
    ``known`` are the digests of all requested views."""

    sequence: int
    events: list[Event]
    views: dict[bytes, Seen]
    known: frozenset[bytes]

    def seen(self, digest: bytes | None) -> Seen:
        """Returns the events of a view; None: of subscribers without rules."""
        if digest is None:
            return self.events
        return self.views.get(digest, self.events) if digest in self.known else Unseen()


@dataclass(frozen=True, slots=True)
class EventWriter:
    """Encodes events; copied rows have none. ``views`` are computed in addition to the common events."""

    views: Sequence[EventView] = ()

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        digests = [view.digest for view in self.views]
        prefix = b"".join((_COUNT.pack(len(digests)), *digests))
        for body in receipt_bodies((self._sections(message, partition.names), True) for message in messages):
            yield prefix + body if body else body

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return receipt_bodies(([], not rows.more_follow) for rows in copied)

    def _sections(self, message: MessageChanges, names: Mapping[int, TableName]) -> list[bytes]:
        pieces = _section(message, _EVERYBODY)
        if not pieces:
            return []
        left_bytes, left_s = MOST_VIEWED_BYTES, LONGEST_S
        for view in self.views:
            began = time.thread_time()
            section = self._viewed(message, view, names, left_s)
            if sum(map(len, section)) > left_bytes and len(self.views) > 1:
                section = _told(message.sequence, view.digest, _TOO_MUCH)
            left_bytes -= sum(map(len, section))
            left_s -= time.thread_time() - began
            pieces += section
        return pieces

    def _viewed(self, message: MessageChanges, view: EventView, names: Mapping[int, TableName], left_s: float) -> list[bytes]:
        """Returns the events of one view. A view that is too much together with others is no error: the message is read
        again for this view alone."""
        try:
            seen = view.apply(message, names, left_s)
        except RulesFailedError as error:
            is_certain = len(self.views) == 1 or not error.is_late
            return _told(message.sequence, view.digest, orjson.dumps(error.reason) if is_certain else _TOO_MUCH)
        return [] if seen is None else _section(seen, view.digest) or _told(message.sequence, view.digest, b"[]")


def _section(message: MessageChanges, digest: bytes) -> list[bytes]:
    kinds: dict[EventKind, int] = {}
    numbers: list[int] = []
    texts: list[bytes] = []
    for lines in encode_lines(message):
        for line in lines.splitlines(keepends=True):
            content = line_fields(line)
            event = content["operation"].lower()
            if event in EVENTS:
                kind = EventKind(content["schema"], content["table"], event)
                numbers.append(kinds.setdefault(kind, len(kinds)))
                texts.append(line)
    if not texts:
        return []
    listed, count = orjson.dumps([tuple(kind) for kind in kinds]), len(texts)
    columns = struct.pack(f"<{count}H", *numbers) + struct.pack(f"<{count}I", *map(len, texts))
    return [_HEADER.pack(message.sequence, digest, count, len(listed)), listed, columns, *texts]


def _told(sequence: int, digest: bytes, text: bytes) -> list[bytes]:
    """Returns a section without events."""
    return [_HEADER.pack(sequence, digest, 0, len(text)), text]


def decode_events(body: bytes) -> Iterator[MessageEvents]:
    """Yields the messages of a receipt's body in order."""
    if not body:
        return
    count, offset = _COUNT.unpack_from(body)[0], _COUNT.size
    known = frozenset(body[begin : begin + len(_EVERYBODY)] for begin in range(offset, offset + 8 * count, 8))
    offset += 8 * count
    message: MessageEvents | None = None
    while offset < len(body):
        sequence, digest, count, size = _HEADER.unpack_from(body, offset)
        offset += _HEADER.size
        told = orjson.loads(body[offset : offset + size])
        offset += size
        seen: Seen
        match told:
            case None:
                seen = Unseen()
            case str():
                seen = Unworkable(told)
            case _:
                seen, offset = _decode_section(body, offset, count, [EventKind(*kind) for kind in told])
        if digest != _EVERYBODY:
            assert message is not None, "the common events come first"
            message.views[digest] = seen
            continue
        if message is not None:
            yield message
        assert isinstance(seen, list), "the common events are computed without rules"
        message = MessageEvents(sequence, seen, {}, known)
    if message is not None:
        yield message


def _decode_section(body: bytes, offset: int, count: int, kinds: Sequence[EventKind]) -> tuple[list[Event], int]:
    """Returns the events, and where they end."""
    numbers = struct.unpack_from(f"<{count}H", body, offset)
    offset += 2 * count
    lengths = struct.unpack_from(f"<{count}I", body, offset)
    ends = list(accumulate(lengths, initial=offset + 4 * count))
    texts = (body[begin:end] for begin, end in pairwise(ends))
    return [Event(kinds[number], text) for number, text in zip(numbers, texts, strict=True)], ends[-1]
