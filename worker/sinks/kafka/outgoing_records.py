"""Records on their way from a task to the driver.

A receipt's body has a section for each message of the source that has any record: the sizes of its groups and its number of
records; the groups, as JSON; then for each record its group, its ordinal and the lengths of its key and its value (-1: there is
none), and keys and values one after the other. A group is what records share: the topic, what their position begins with, and the
headers that are the same. All integers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import orjson

_HEAD = struct.Struct("<II")
NONE = -1

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """``place`` is what the position of a record begins with; its ordinal follows. A record of a barrier is about rows of every
    partition."""

    topic: str
    place: bytes
    headers: Headers
    is_barrier: bool = False

    def to_json(self) -> list[object]:
        return [self.topic, self.place.decode(), [[name, value.decode()] for name, value in self.headers], self.is_barrier]

    @classmethod
    def of_json(cls, content: list[object]) -> RecordGroup:
        topic, place, headers, is_barrier = content
        assert isinstance(topic, str)
        assert isinstance(place, str)
        assert isinstance(headers, list)
        return cls(topic, place.encode(), tuple((name, value.encode()) for name, value in headers), bool(is_barrier))


OutgoingRecord = tuple[RecordGroup, int, bytes | None, bytes | None]
"""Its group, its ordinal, its key and its value. A NamedTuple would cost as much as all the rest of decoding."""


@dataclass(slots=True)
class RecordSection:
    """Records in their order, as columns."""

    groups: dict[RecordGroup, int] = field(default_factory=dict)
    group_of: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)

    def group(self, group: RecordGroup) -> int:
        """Its number in this section."""
        return self.groups.setdefault(group, len(self.groups))

    def add(self, group: int, ordinal: int, key: bytes | None, value: bytes | None) -> None:
        self.group_of.append(group)
        self.ordinals.append(ordinal)
        self.keys.append(key)
        self.values.append(value)

    def encode(self) -> list[bytes]:
        """Pieces of a receipt's body; none when there are no records."""
        count = len(self.keys)
        if not count:
            return []
        groups = orjson.dumps([group.to_json() for group in self.groups])
        return [
            _HEAD.pack(len(groups), count),
            groups,
            struct.pack(f"<{count}I{count}Q", *self.group_of, *self.ordinals),
            struct.pack(f"<{2 * count}i", *map(_length, self.keys), *map(_length, self.values)),
            *(key for key in self.keys if key is not None),
            *(value for value in self.values if value is not None),
        ]


def _length(text: bytes | None) -> int:
    return NONE if text is None else len(text)


def decode_records(body: bytes) -> Iterator[OutgoingRecord]:
    """The records of sections in order."""
    offset = 0
    while offset < len(body):
        groups_size, count = _HEAD.unpack_from(body, offset)
        offset += _HEAD.size
        groups = [RecordGroup.of_json(each) for each in orjson.loads(body[offset : offset + groups_size])]
        offset += groups_size
        numbers = struct.unpack_from(f"<{count}I{count}Q", body, offset)
        offset += 12 * count
        lengths = struct.unpack_from(f"<{2 * count}i", body, offset)
        offset += 8 * count
        borders = list(accumulate((max(length, 0) for length in lengths), initial=offset))
        texts = [
            None if length < 0 else body[begin : begin + length] for length, begin in zip(lengths, borders[:-1], strict=True)
        ]
        offset = borders[-1]
        chosen = [groups[number] for number in numbers[:count]]
        yield from zip(chosen, numbers[count:], texts[:count], texts[count:], strict=True)
