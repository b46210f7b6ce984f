"""Records on their way from a task to the driver.

A receipt's body has a section for each message of the source that has any record: the length, and its columns pickled, because
nothing takes bytes apart as fast. A group is what records share: the topic, what their position begins with, and the headers that
are the same.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_LENGTH = struct.Struct("<I")

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """``place`` is what the position of a record begins with; its ordinal follows. A record of a barrier is about rows of every
    partition."""

    topic: str
    place: bytes
    headers: Headers
    is_barrier: bool = False


OutgoingRecord = tuple[RecordGroup, int, bytes | None, bytes | None]
"""Group, ordinal, key and value. A NamedTuple would cost as much as all the rest of decoding."""


@dataclass(slots=True)
class RecordSection:
    """Records in their order, as columns."""

    groups: dict[RecordGroup, int] = field(default_factory=dict)
    group_of: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)

    def group(self, group: RecordGroup) -> int:
        """Returns the group's number in this section."""
        return self.groups.setdefault(group, len(self.groups))

    def add(self, group: int, ordinal: int, key: bytes | None, value: bytes | None) -> None:
        self.group_of.append(group)
        self.ordinals.append(ordinal)
        self.keys.append(key)
        self.values.append(value)

    def encode(self) -> list[bytes]:
        """Returns pieces of a receipt's body; none when there are no records."""
        if not self.keys:
            return []
        columns = list(self.groups), self.group_of, self.ordinals, self.keys, self.values
        pickled = pickle.dumps(columns, pickle.HIGHEST_PROTOCOL)
        return [_LENGTH.pack(len(pickled)), pickled]


def decode_records(body: bytes) -> Iterator[OutgoingRecord]:
    """Yields the records of sections in order."""
    offset = 0
    while offset < len(body):
        (length,) = _LENGTH.unpack_from(body, offset)
        offset += _LENGTH.size
        groups, *columns = pickle.loads(memoryview(body)[offset : offset + length])  # noqa: S301  from our own tasks
        offset += length
        yield from zip(map(groups.__getitem__, columns[0]), *columns[1:], strict=True)
